"""Make the README's picture anew: the three twins' maps on one embedded image.

Run from the checkout: ``python docs/make_pictures.py``.
"""

from __future__ import annotations

from pathlib import Path

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.figures import grid

TWINS = {
    "linear": ("infvit_linear_digits", ("visits", "perron", "linear", "degree")),
    "pure": ("infvit_pure_digits", ("visits", "perron")),
    "softmax": ("vit_softmax_digits", ("visits", "attention", "rollout")),
}
SAMPLE = PhotoDigits("val", 8)[0]

maps = {}
for twin, (name, methods) in TWINS.items():
    model = infsa_explain.load(name)
    images = infsa_explain.preprocess(model, SAMPLE.image)
    for method in methods:
        maps[f"{twin}: {method}"] = infsa_explain.explain(model, images, method).maps[0]
figure = grid(SAMPLE.image, maps, boxes=SAMPLE.boxes, columns=5)
figure.savefig(Path(__file__).parent / "look.png", dpi=80)
