"""Loading the weights of a file into a model: which names they have there, and what does not fit.

Training scripts wrap models and nest state dicts. So the weight ``blocks.0.attn.qkv.bias`` may be
named with a prefix, such as ``state_dict/module.backbone.`` (a slash ends the name of a nested
state dict). The prefix that is followed by the most names of the model is the right one.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from torch import Tensor, nn

from .positions import Size, at_grid, positions_hint

__all__ = ["fit", "misfits", "own_weights"]

#: Words in the prefix of weights that are means of others over training. DINO's teacher is one.
AVERAGED = {"averaged", "ema", "swa", "teacher"}
#: Names and sets that an error lists.
LISTED = 5


def fit(
    model: nn.Module, weights: dict[str, Tensor], source: str, *, size: Size | None = None
) -> None:
    """Load all weights of a model.

    They may have any prefix, see :func:`own_weights`. Position embeddings of another grid are
    resampled as timm does.

    Args:
        model: it is left as it is if the weights do not fit.
        weights: as :func:`infsa_explain.models.checkpoints.read_checkpoint` gives them.
        source: names them in errors and warnings.
        size: (height, width) of the images that they were trained on; if None, a square grid is
            assumed unless the number of positions is the model's.

    Raises:
        ValueError: if they do not fit; missing, unexpected and misshapen keys are named, and what
            there is.
    """
    place = _place(model, weights, source)
    chosen = _under(place, weights)
    if place.whole:
        _say_what_is_left(place, weights, source)
        chosen = at_grid(model, chosen, source, size)
    if problems := misfits(model, chosen):
        hints = [_classifier_hint(model, chosen), positions_hint(model, chosen)]
        if type(model).__module__.startswith("transformers."):
            hints.append("from_pretrained of its class knows the names that its files use")
        if len(chosen) < len(weights) or not chosen.keys() & model.state_dict().keys():
            hints.insert(0, f"the file holds {_contents(weights)}")
        raise ValueError(
            f"{source} does not fit {type(model).__name__}; "
            + "; ".join([problems, *filter(None, hints)])
        )
    model.load_state_dict(chosen)


class _Place(NamedTuple):
    """How the names of a file's weights relate to those of the model.

    Attributes:
        outer: a prefix that the model's names have and the file's lack.
        prefix: the prefix of the file's names.
        as_good: all prefixes that are followed by the most names of the model.
        whole: whether all names of the model follow the prefix.
    """

    outer: str
    prefix: str
    as_good: list[str]
    whole: bool


def own_weights(
    model: nn.Module, weights: dict[str, Tensor], source: str, *, optional: Collection[str] = ()
) -> dict[str, Tensor]:
    """The weights for a model, under the names of its state dict.

    They are those with the prefix that is followed by the most names of the model. If several
    prefixes are, averaged weights are taken: those of an EMA, or of DINO's teacher. Weights with
    the prefix that the model lacks are included, so that :func:`misfits` can name them.

    Args:
        optional: names of the model without which a prefix is as good: those of a classifier.

    Raises:
        ValueError: if several prefixes are as good, and none or more than one is of averaged
            weights.
    """
    return _under(_place(model, weights, source, optional), weights)


def _place(
    model: nn.Module, weights: dict[str, Tensor], source: str, optional: Collection[str] = ()
) -> _Place:
    names = list(model.state_dict())
    for cut in (0, _common_depth(names)):  # as they are, and without what wraps the model
        outer = "".join(f"{part}." for part in names[0].split(".")[:cut]) if names else ""
        wanted = {name.removeprefix(outer) for name in names if name not in optional}
        matches = _followed(wanted, weights)
        most = max(matches.values(), default=0)
        if most == len(wanted):
            break
    if 2 * most < len(wanted):  # names that are alike by chance
        folder = max(Counter(map(_folder, weights)).items(), key=lambda item: item[1])[0]
        return _Place("", folder, [folder], whole=False)
    as_good = [prefix for prefix, count in matches.items() if count == most]
    prefix = _chosen(as_good, type(model).__name__, source)
    return _Place(outer, prefix, as_good, most == len(wanted))


def _under(place: _Place, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        place.outer + key.removeprefix(place.prefix): value
        for key, value in weights.items()
        if key.startswith(place.prefix) and _folder(key) == _folder(place.prefix)
    }


def _common_depth(names: list[str]) -> int:
    """The number of leading parts that all names share, as the names in a wrapper do."""
    parts = [name.split(".")[:-1] for name in names]
    depth = 0
    while parts and all(len(p) > depth and p[depth] == parts[0][depth] for p in parts):
        depth += 1
    return depth


def _followed(names: Collection[str], weights: Iterable[str]) -> Counter[str]:
    """The number of the names that follow each prefix."""
    matches: Counter[str] = Counter()
    for key in weights:
        for start in (0, *(match.end() for match in re.finditer(r"[./]", key))):
            if key[start:] in names:
                matches[key[:start]] += 1
    return matches


def _folder(key: str) -> str:
    """The state dict that a key or prefix belongs to, with a slash at the end."""
    return key[: key.rfind("/") + 1]


def _chosen(prefixes: list[str], model: str, source: str) -> str:
    if len(prefixes) == 1:
        return prefixes[0]
    averaged = [p for p in prefixes if AVERAGED & set(re.split(r"[._/]", p.lower()))]
    if len(averaged) == 1:
        return averaged[0]
    raise ValueError(
        f"{source} holds several sets of weights for {model}, under {_listed(prefixes)}; save the "
        "one that you mean to a file of its own"
    )


def _say_what_is_left(place: _Place, weights: Iterable[str], source: str) -> None:
    """Warn if there was a choice between sets of weights, or if others were left out."""
    others = [other for other in place.as_good if other != place.prefix]
    beside = [
        key
        for key in weights
        if _folder(key) == _folder(place.prefix) and not key.startswith((place.prefix, *others))
    ]
    said = f"{source}: the weights under {_listed([place.prefix])} are taken"
    if others:
        said += f", which are averaged, before those under {_listed(others)}"
    if beside:
        said += f"; left out: {len(beside)} beside them, such as {beside[0]}"
    if others or beside:
        warnings.warn(said, stacklevel=4)


def _listed(prefixes: list[str]) -> str:
    shown = [prefix.rstrip("./") or "no prefix" for prefix in prefixes[:LISTED]]
    return ", ".join(shown) + (" …" if len(prefixes) > LISTED else "")


def _contents(weights: Collection[str]) -> str:
    """The top-level parts of a file, with their numbers of tensors."""
    nested = any("/" in key for key in weights)
    counts = Counter(key.partition("/" if nested else ".")[0] for key in weights)
    shown = [f"{name} ({number})" for name, number in counts.most_common(LISTED)]
    return "tensors in " + ", ".join(shown) + (" …" if len(counts) > LISTED else "")


def misfits(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """Keys that only one of a model and a state dict has, or that differ in shape; "" if none."""
    state = model.state_dict()
    shapes = [
        f"{key} is {tuple(weights[key].shape)}, expected {tuple(state[key].shape)}"
        for key in state.keys() & weights.keys()
        if state[key].shape != weights[key].shape
    ]
    return "; ".join(
        f"{label}: {', '.join(sorted(keys)[:LISTED])}{' …' if len(keys) > LISTED else ''}"
        for label, keys in (
            ("missing", state.keys() - weights.keys()),
            ("unexpected", weights.keys() - state.keys()),
            ("shapes", shapes),
        )
        if keys
    )


def _classifier_hint(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """What to do if only the number of classes differs."""
    state = model.state_dict()
    differ = {
        key: (value.shape, state[key].shape)
        for key, value in weights.items()
        if key in state and value.shape != state[key].shape
    }
    heads = {name.rpartition(".")[0] for name in differ}
    inputs_agree = all(theirs[1:] == ours[1:] for theirs, ours in differ.values())
    if state.keys() != weights.keys() or len(heads) != 1 or not inputs_agree:
        return ""
    theirs, ours = next(iter(differ.values()))
    return (
        f"its {heads.pop()} has {theirs[0]} outputs, the model's {ours[0]}: build the model with "
        f"{theirs[0]} classes, or load it by its name in timm's registry, which does so"
    )
