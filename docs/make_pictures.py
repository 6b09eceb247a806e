"""Make the README's picture anew: the three twins' maps on one embedded image.

Run from the checkout: ``python docs/make_pictures.py``.
"""

from __future__ import annotations

from pathlib import Path

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.heatmap import grid

TWINS = {"linear": "infvit_linear_digits", "pure": "infvit_pure_digits"}
SAMPLE = PhotoDigits("val", 8)[4]

maps = {}
for twin, name in TWINS.items():
    model = infsa_explain.load(name)
    images = infsa_explain.preprocess(model, SAMPLE.image)
    for method in ("visits", "perron", "linear", "degree"):
        maps[f"{twin}: {method}"] = infsa_explain.explain(model, images, method).maps[0]
figure = grid(SAMPLE.image, maps, boxes=SAMPLE.boxes, columns=5)
figure.savefig(Path(__file__).parent / "look.png", dpi=80)
