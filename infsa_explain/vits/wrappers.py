"""Models that hold another: compiled, parallel, averaged, or with steps before or after a ViT."""

from __future__ import annotations

import inspect
from typing import Any

from infsa_metrics.outputs import Output
from torch import Tensor, nn

from .registry import Family, dotted_names, family_of

__all__ = [
    "classifies",
    "first_argument",
    "model_output",
    "require_classes",
    "require_module",
    "unwrapped",
    "vit_of",
]

#: Wrappers whose output is that of the module in this attribute.
TRANSPARENT = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
    "timm.utils.model_ema.ModelEmaV2": "module",
    "timm.utils.model_ema.ModelEmaV3": "module",
}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without ``torch.compile`` and wrappers for parallel or averaged models.

    Raises:
        ValueError: if it is no ``nn.Module``.
    """
    require_module(model)
    for name in dotted_names(type(model)):
        if name in TRANSPARENT:
            return unwrapped(getattr(model, TRANSPARENT[name]))
    return model


def require_module(model: object) -> None:
    """Refuse what is no module, such as a name.

    Raises:
        ValueError: if it is no ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        hint = f"; load it first: infsa_explain.load({model!r})" if isinstance(model, str) else ""
        raise ValueError(f"model must be an nn.Module, got {type(model).__name__}{hint}")


def vit_of(model: nn.Module) -> nn.Module:
    """The Vision Transformer of a model: the model itself, or the only one inside it.

    A model without any Vision Transformer of a known family is returned unchanged.

    Raises:
        ValueError: if there are several; names them.
    """
    model = unwrapped(model)
    if family_of(model) is not None:
        return model
    vits: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{other}.") for other in vits)
        if not inside and family_of(module) is not None:
            vits[name] = module
    if len(vits) > 1:
        raise ValueError(
            f"{type(model).__name__} holds {len(vits)} Vision Transformers, "
            f"{', '.join(vits)}; pass one of them"
        )
    return next(iter(vits.values()), model)


def classifies(model: nn.Module) -> bool:
    """Whether a model has a classifier. Any layer with weights around a ViT counts as one."""
    model = unwrapped(model)
    vit = vit_of(model)
    of_vit = {id(parameter) for parameter in vit.parameters()}
    around = any(id(parameter) not in of_vit for parameter in model.parameters())
    return (family_of(vit) or Family()).classifies(vit) or around


def model_output(model: nn.Module, choice: Output = "auto") -> Output:
    """The kind of a model's outputs: the caller's choice, or by the model itself if ``"auto"``.

    A model without a classifier has ``"embedding"``. A Hugging Face model whose ``config`` has the
    ``problem_type`` "multi_label_classification" has ``"sigmoid"``.

    Raises:
        ValueError: for ``"embedding"`` and a model with a classifier, or another choice and a model
            without one.
    """
    title = type(unwrapped(model)).__name__
    if not classifies(model):
        if choice not in ("auto", "embedding"):
            raise ValueError(
                f"output must be 'embedding': {title} has no classifier; got {choice!r}"
            )
        return "embedding"
    if choice == "embedding":
        raise ValueError(
            f"output must be 'softmax' or 'sigmoid', got 'embedding': {title} has a classifier"
        )
    if choice == "auto" and _problem(model) == "multi_label_classification":
        return "sigmoid"
    return choice


def _problem(model: nn.Module) -> str | None:
    """The ``problem_type`` in the ``config`` of a Hugging Face model, or None."""
    config = getattr(vit_of(model), "config", None)
    problem: str | None = getattr(config, "problem_type", None)
    return problem


def require_classes(model: nn.Module, what: str) -> None:
    """Refuse a model whose outputs are not scores of classes; ``what`` needs them.

    Raises:
        ValueError: if the model has no classifier, or is a regression by its ``config``.
    """
    title = type(unwrapped(model)).__name__
    if not classifies(model):
        raise ValueError(f"{what} needs classes, and {title} has no classifier")
    if _problem(model) == "regression":
        raise ValueError(
            f"{what} needs classes, and {title} is a regression by its config.problem_type"
        )


def first_argument(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The first argument of a call of a module, passed by position or by name."""
    arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    first: Tensor = next(iter(arguments.values()))
    return first
