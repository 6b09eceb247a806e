"""Which labels a model's images have, where a measure asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from infsa_metrics import class_logits, output_tensor
from infsa_metrics.outputs import eval_mode
from torch import nn

from ..data.matching import LabelMismatch, Labels, Matched, match_labels, without_labels
from ..data.samples import ImageData
from ..vits import class_names, number_of_classes
from ..vits.preprocessing import data_config

__all__ = ["labelled"]


class _User(Protocol):
    """A measure, or the options of one."""

    @property
    def needs_labels(self) -> bool: ...


def labelled(
    model: nn.Module, data: ImageData, users: Iterable[_User], labels: Labels = "auto"
) -> Matched:
    """A data set with a model's labels, or without labels where no measure needs any.

    Args:
        model: with class names or without, see :func:`infsa_explain.vits.class_names`.
        data: the images.
        users: measures, which say whether they need labels.
        labels: as :func:`infsa_explain.data.match_labels` has it.

    Raises:
        ValueError: the labels cannot be matched, and a measure needs them or ``labels`` asks for
            them.
    """
    needing = [getattr(user, "name", "this") for user in users if user.needs_labels]
    names, outputs = class_names(model), number_of_classes(model)
    if names is None and outputs is None and needing:
        outputs = _counted(model)
    try:
        return match_labels(data, names, outputs=outputs, labels=labels)
    except LabelMismatch as error:
        if needing:
            verb = "needs" if len(needing) == 1 else "need"
            raise LabelMismatch(f"{', '.join(needing)} {verb} labels: {error}") from None
        if labels != "auto":
            raise
        return without_labels(data)


def _counted(model: nn.Module) -> int | None:
    """The number of classes of a model that does not say it, by a blank image; None if it fails."""
    parameter = next(model.parameters(), torch.zeros(()))
    blank = parameter.new_zeros((1, *data_config(model)["input_size"]))
    try:
        with eval_mode(model), torch.no_grad():
            return class_logits(output_tensor(model(blank))).shape[1]
    except Exception:  # a model of another's making fails in every way there is
        return None
