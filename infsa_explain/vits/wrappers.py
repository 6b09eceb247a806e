"""Models inside models: compiled, parallel, averaged, or with steps before or after the ViT."""

from __future__ import annotations

import inspect
from typing import Any

from infsa_metrics.outputs import Output
from torch import Tensor, nn

from .registry import dotted_names, model_of

__all__ = [
    "classifies",
    "first_argument",
    "model_output",
    "require_classes",
    "require_module",
    "unwrapped",
    "vit_of",
]

#: Wrappers that compute what the module in this attribute computes.
TRANSPARENT = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
    "timm.utils.model_ema.ModelEmaV2": "module",
    "timm.utils.model_ema.ModelEmaV3": "module",
}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without wrappers that compute the same: ``torch.compile``, parallel, averaged.

    Raises:
        ValueError: if it is not a module.
    """
    require_module(model)
    for name in dotted_names(type(model)):
        if name in TRANSPARENT:
            return unwrapped(getattr(model, TRANSPARENT[name]))
    return model


def require_module(model: object) -> None:
    """Refuse what is not a module, such as a name.

    Raises:
        ValueError: if it is none.
    """
    if not isinstance(model, nn.Module):
        hint = f"; load it first: infsa_explain.load({model!r})" if isinstance(model, str) else ""
        raise ValueError(f"model must be an nn.Module, got {type(model).__name__}{hint}")


def vit_of(model: nn.Module) -> nn.Module:
    """The Vision Transformer of a model: itself, or the only one inside it.

    A model of no known family without a ViT inside is returned as it is.

    Raises:
        ValueError: if there are several; names them.
    """
    model = unwrapped(model)
    if model_of(model) is not None:
        return model
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{other}.") for other in found)
        if not inside and model_of(module) is not None:
            found[name] = module
    if len(found) > 1:
        raise ValueError(
            f"{type(model).__name__} holds {len(found)} Vision Transformers, "
            f"{', '.join(found)}; pass one of them"
        )
    return next(iter(found.values()), model)


def classifies(model: nn.Module) -> bool:
    """Whether a model has a classifier. Any layer with weights around a bare ViT counts as one."""
    model = unwrapped(model)
    vit = vit_of(model)
    family = model_of(vit)
    if family is None:
        return getattr(model, "num_classes", None) != 0
    own = {id(parameter) for parameter in vit.parameters()}
    return family.classifies(vit) or any(id(p) not in own for p in model.parameters())


def model_output(model: nn.Module, choice: Output = "auto") -> Output:
    """What a model's outputs are: the caller's choice, or what the model says of itself.

    A model without a classifier has ``"embedding"``; one of Hugging Face's with the
    ``problem_type`` "multi_label_classification" in its ``config`` has ``"sigmoid"``.

    Raises:
        ValueError: for a choice that contradicts whether the model has a classifier.
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
    """What kind of problem one of Hugging Face's models says it solves."""
    config = getattr(vit_of(model), "config", None)
    problem: str | None = getattr(config, "problem_type", None)
    return problem


def require_classes(model: nn.Module, what: str) -> None:
    """Refuse a model whose outputs are not of classes.

    Raises:
        ValueError: if the model has no classifier, or says that it solves a regression.
    """
    title = type(unwrapped(model)).__name__
    if not classifies(model):
        raise ValueError(f"{what} needs classes, and {title} has no classifier")
    if _problem(model) == "regression":
        raise ValueError(
            f"{what} needs classes, and {title} is a regression by its config.problem_type"
        )


def first_argument(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The first argument of a call of a module, by whichever way it was passed."""
    arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    first: Tensor = next(iter(arguments.values()))
    return first
