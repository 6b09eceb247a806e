"""Controls: maps that do not look at the image. A method must be better than they are."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vits.capturing import Graphs
from ..vits.seeding import seed_of
from .registry import Request, register_method


@register_method("random", scope="model", control=True)
def random(graphs: Graphs, request: Request) -> Tensor:
    """Independent uniform noise for every patch, seeded by the image's identity."""
    patches = graphs.grid[0] * graphs.grid[1]
    rows = []
    for seed in request.seeds:
        generator = torch.Generator().manual_seed(seed_of(f"random map of {seed}", 7))
        rows.append(torch.rand(patches, generator=generator, dtype=torch.float32))
    return with_prefix(torch.stack(rows), graphs)


@register_method("centre", scope="model", control=True)
def centre(graphs: Graphs, request: Request) -> Tensor:
    """A fixed blob in the middle, exp(−r²/2σ²) with σ a quarter of the image's side."""
    gh, gw = graphs.grid
    y = (torch.arange(gh) + 0.5) / gh - 0.5
    x = (torch.arange(gw) + 0.5) / gw - 0.5
    blob = torch.exp(-(y[:, None] ** 2 + x**2) / (2 * 0.25**2)).flatten()
    return with_prefix(blob.expand(len(request.seeds), -1), graphs)


def with_prefix(patches: Tensor, graphs: Graphs) -> Tensor:
    """Scores (B, P) of patches with zeros for the prefix tokens, (B, N), on the model's device."""
    padded = torch.nn.functional.pad(patches, (graphs.num_prefix_tokens, 0))
    return padded.to(graphs.logits.device)
