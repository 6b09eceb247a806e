"""Resampling position embeddings to the patch grid of a model.

A state dict does not say on which grid its positions were learned: 196 positions may be 14×14 or
7×28. Some files record the size of their images; then the grid is known. Otherwise it is guessed.
After a wrong guess, positions differ much from their neighbours.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import timm
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

__all__ = ["Size", "at_grid", "positions_hint", "recorded_size", "size_of"]

#: Height and width, of an image in pixels or of a grid in patches.
Size = tuple[int, int]
#: A grid looks like another if patches above each other are more alike there, by this mean cosine.
#: Tried on the positions of seven trained models, resampled to 24 grids: of 77 grids that are no
#: squares and were taken for one, 74 were seen, and no square from 6×6 on looked like another grid.
MARGIN = 0.1
#: Longer grids, or smaller ones, are not looked at.
ASPECT, FEWEST = 4, 36


def at_grid(
    model: nn.Module, weights: dict[str, Tensor], source: str, size: Size | None
) -> dict[str, Tensor]:
    """Weights with position embeddings for the grid of the model.

    For timm's models with positions (1, N, D) and a patch embedding. If the file records the size
    of its images, positions are resampled from that grid. Otherwise they are kept if their number
    is the model's, and resampled from a square grid if it is not. A warning tells if the recorded
    grid differs although the number is the same, or if the assumed grid looks wrong.

    Args:
        weights: under the model's names; they are not changed.
        source: names them in warnings.
        size: of the images that they were trained on, where it is recorded.
    """
    weights = dict(weights)
    for key, module in _with_positions(model):
        positions = weights.get(key)
        if positions is None or positions.ndim != 3 or not positions.is_floating_point():
            continue
        prefix, grid = _prefix(module), tuple(module.patch_embed.grid_size)
        patches, same = positions.shape[1] - prefix, positions.shape == module.pos_embed.shape
        old = _grid(size, weights.get(key.replace("pos_embed", "patch_embed.proj.weight")), patches)
        recorded = old is not None
        if old is None:
            root = math.isqrt(max(patches, 0))
            old = grid if same else (root, root) if root and root**2 == patches else None
        if old is None:
            continue
        if recorded and same and old != grid:
            _warn(source, f"was learned on {_of(old)} patches, and is resampled to {_of(grid)}")
        elif not recorded and (other := _other_grid(positions[0, prefix:], old)):
            _warn(
                source,
                f"is taken to be of {_of(old)} patches, but looks like one of {_of(other)}; if it "
                "is, build the model with the img_size that it was trained on, and change that "
                "with set_input_size",
            )
        if old != grid:
            weights[key] = resample_abs_pos_embed(
                positions.float(), list(grid), list(old), num_prefix_tokens=prefix
            )
    return weights


def positions_hint(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """The reason why a position embedding does not fit; "" if it fits."""
    for key, module in _with_positions(model):
        positions, expected = weights.get(key), module.pos_embed
        if positions is None or positions.ndim != 3 or positions.shape[1] == expected.shape[1]:
            continue
        prefix, grid = _prefix(module), tuple(module.patch_embed.grid_size)
        return (
            f"{key} has {positions.shape[1]} positions, where the model has {_of(grid)} for "
            f"patches and {prefix} for prefix tokens; build the model with the img_size that the "
            "weights were trained on, and their class token, registers and no_embed_class"
        )
    return ""


def recorded_size(metadata: dict[str, str]) -> Size | None:
    """The size of the images of a checkpoint, from its metadata; None if not recorded.

    >>> recorded_size({"architecture": "vit_tiny_patch16_224", "arguments": '{"img_size": 96}'})
    (96, 96)
    """
    with suppress(ValueError, TypeError, RuntimeError, AttributeError):
        if "img_size" in metadata:
            return size_of(json.loads(metadata["img_size"]))
        if "architecture" in metadata:
            arguments = json.loads(metadata.get("arguments", "{}"))
            name = metadata["architecture"]
            if "img_size" not in arguments and timm.is_model(name):
                default = timm.get_pretrained_cfg(name)
                return None if default is None else size_of(default.input_size)
            return size_of(arguments.get("img_size"))
    return None


def size_of(value: Any) -> Size | None:
    """(height, width) from a size as training scripts write it.

    That is a side, (height, width) or (channels, height, width).

    >>> size_of(224), size_of([3, 96, 128]), size_of("small")
    ((224, 224), (96, 128), None)
    """
    sides = [value, value] if isinstance(value, int) else value
    if not isinstance(sides, (list, tuple)) or len(sides) not in (2, 3):
        return None
    if not all(type(side) is int and side > 0 for side in sides):
        return None
    return sides[-2], sides[-1]


def _with_positions(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules with timm's position embedding, and its name in the model's state dict."""
    for name, module in model.named_modules():
        positions = getattr(module, "pos_embed", None)
        grid = getattr(getattr(module, "patch_embed", None), "grid_size", None)
        if isinstance(positions, Tensor) and positions.ndim == 3 and grid is not None:
            yield f"{name}.pos_embed".removeprefix("."), module


def _prefix(module: Any) -> int:
    """Positions that are of prefix tokens, which come first."""
    embedded = not getattr(module, "no_embed_class", False)
    return int(getattr(module, "num_prefix_tokens", 1)) if embedded else 0


def _grid(size: Size | None, filters: Tensor | None, patches: int) -> Size | None:
    """The grid of images of that size, by the filters of the patches, if it has as many."""
    if size is None or filters is None or filters.ndim != 4:
        return None
    grid = size[0] // filters.shape[2], size[1] // filters.shape[3]
    return grid if grid[0] * grid[1] == patches else None


def _other_grid(positions: Tensor, assumed: Size) -> Size | None:
    """A grid on which positions (P, D) are more alike to those below them than on the assumed one.

    Learned positions are like their neighbours'; those of an untrained model are like none, and
    have no other grid.
    """
    patches = len(positions)
    centred = positions.double() - positions.double().mean(0)
    units = nn.functional.normalize(centred, dim=1)

    def alike(width: int) -> float:
        return float((units[:-width] * units[width:]).sum(1).mean())

    widths = [
        width
        for width in range(2, patches // 2 + 1)
        if patches % width == 0 and max(width**2, patches) <= ASPECT * min(width**2, patches)
    ]
    if patches < FEWEST or assumed[1] >= patches or not widths or not bool(units.isfinite().all()):
        return None
    best = max(widths, key=alike)
    if alike(best) < alike(assumed[1]) + MARGIN:
        return None
    return patches // best, best


def _of(grid: Any) -> str:
    return f"{grid[0]}×{grid[1]}"


def _warn(source: str, fault: str) -> None:
    warnings.warn(f"{source}: the position embedding {fault}", stacklevel=4)
