"""Controls: maps that look at nothing. A method that does not beat them shows nothing."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from ..vits.capturing import Graphs
from .registry import Request, model_method


@model_method("random", control=True)
def random(graphs: Graphs, request: Request) -> Tensor:
    """Independent uniform noise for every patch, seeded by the image's identity."""
    patches = graphs.grid[0] * graphs.grid[1]
    rows = []
    for seed in request.seeds:
        digest = hashlib.sha256(f"random map of {seed}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        rows.append(torch.rand(patches, generator=generator, dtype=torch.float32))
    return with_prefix(torch.stack(rows), graphs)


@model_method("centre", control=True)
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
