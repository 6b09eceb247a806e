"""Make the pictures of the documentation anew.

Run from the checkout. ``python experiments/make_pictures.py`` draws ``look.png``, the three twins
on an image of the embedded benchmark. With ``--dinov2 FILE``, timm's weights of
``vit_small_patch14_dinov2``, also ``dinov2.jpg``: blocks of the original on scikit-learn's two
photographs. With ``--converted FILE…``, of ``dinov2_experiment.py``, also ``dinov2_converted.jpg``:
the same photographs under models whose attention was swapped.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from sklearn.datasets import load_sample_images

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.drawing.figures import Panel, draw, grid
from infsa_explain.graph import centrality
from infsa_explain.graph.centrality import Centrality
from infsa_explain.graph.operator import AttentionOperator
from infsa_explain.methods import register_method
from infsa_explain.methods.registry import Request
from infsa_explain.viewing.views import view
from infsa_explain.vits.capturing import Graphs, Layer

DOCS = Path(__file__).parents[1] / "docs"
TWINS = {
    "linear": ("infvit_linear_digits", ("visits", "perron", "linear", "degree")),
    "pure": ("infvit_pure_digits", ("visits", "perron")),
    "softmax": ("vit_softmax_digits", ("visits", "attention", "rollout")),
}
PHOTOGRAPHS = load_sample_images().images  # china.jpg, flower.jpg
SIZE, BLOCKS = 280, (5, 9, 12)
#: Rows of the picture of DINOv2: how a method is written, and its name.
ROWS = {
    "visits, relu graph": "relu-visits",
    "visits": "visits",
    "tokenrank": "tokenrank",
    "class attention": "attention",
    "rollout": "rollout",
}


@register_method("relu-visits", kinds=("softmax",))
def relu_visits(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """Visits on the graph that InfSA would make of a softmax layer's queries and keys."""
    graph = AttentionOperator(layer.operator.q, layer.operator.k, kind="infsa")
    return centrality.visits(graph, request.gamma_of(layer))


def upto(graphs: Graphs, block: int) -> Graphs:
    """The graphs of the first blocks alone."""
    layers, kinds, indices = graphs.layers[:block], graphs.kinds[:block], graphs.indices[:block]
    return replace(graphs, layers=layers, kinds=kinds, indices=indices)


def look() -> None:
    """The three twins' maps of one embedded image."""
    sample = PhotoDigits("val", 8)[0]
    maps = {}
    for twin, (name, methods) in TWINS.items():
        seen = view(infsa_explain.load(name), sample.image, seed=sample.image_id)
        for method in methods:
            maps[f"{twin}: {method}"] = seen.explain(method).scores
    figure = grid(sample.image, maps, boxes=sample.boxes, columns=5)
    figure.savefig(DOCS / "look.png", dpi=80)


def dinov2(weights: Path) -> None:
    """Maps of the original's blocks; rollout through the blocks up to each."""
    model = infsa_explain.load("vit_small_patch14_dinov2", checkpoint=weights, img_size=SIZE)
    rows: list[list[Panel | None]] = [[] for _ in ROWS]
    for photograph in PHOTOGRAPHS:
        seen = view(model, photograph)
        for row, method in zip(rows, ROWS.values(), strict=True):
            row.append(None if row is not rows[0] else Panel(seen.pixels))
            for block in BLOCKS:
                scores = replace(seen, graphs=upto(seen.graphs, block)).explain(method).scores
                title = f"block {block}" if row is rows[0] else ""
                row.append(Panel(seen.pixels, scores, title))
    figure = draw(rows, names=list(ROWS), width=1.3, percentile=99)
    figure.savefig(DOCS / "dinov2.jpg", dpi=100, pil_kwargs={"quality": 85})


def converted(files: list[Path]) -> None:
    """Visits of the last block of every model."""
    models = {file.stem: infsa_explain.load(file) for file in files}
    rows: list[list[Panel | None]] = []
    for photograph in PHOTOGRAPHS:
        views = {name: view(model, photograph) for name, model in models.items()}
        rows.append([Panel(next(iter(views.values())).pixels)])
        rows[-1] += [
            Panel(seen.pixels, seen.explain("visits").scores, "" if len(rows) > 1 else name)
            for name, seen in views.items()
        ]
    draw(rows).savefig(DOCS / "dinov2_converted.jpg", dpi=100, pil_kwargs={"quality": 85})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the documentation's pictures anew.")
    parser.add_argument("--dinov2", type=Path, metavar="FILE")
    parser.add_argument("--converted", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    look()
    if options.dinov2:
        dinov2(options.dinov2)
    if options.converted:
        converted(options.converted)
