"""InfViT in timm's registry: Vision Transformers whose attention is InfSA, and their twins.

Importing this module registers the names, so that ``timm.create_model("infvit_linear_4l")``
works. A twin differs from its InfViT in the attention layer and in nothing else.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
import os
from contextlib import nullcontext
from threading import RLock
from typing import Any, Literal, cast

import timm
import torch
from timm.layers.attention import Attention
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..attention.functional import INITIAL_GAMMA
from ..attention.layers import LinearInfSA, PureInfSA
from ..catalogue import BUNDLED, UNTRAINED, weights_file
from ..ranges import count
from ..vits import unwrapped, vit_of
from ..vits.torchvision_vits import anew, is_torchvision
from .any_size import PiecewiseVisionTransformer
from .checkpoints import change, is_checkpoint, read_checkpoint, rebuild
from .fitting import fit, own_weights
from .hub import hub_or_cache
from .positions import recorded_size

__all__ = ["BUNDLED", "InfViT", "load", "untrained"]

AttentionKind = Literal["linear", "pure", "softmax"]

ATTENTION_LAYERS: dict[str, type[Attention]] = {
    "linear": LinearInfSA,
    "pure": PureInfSA,
    "softmax": Attention,
}


class InfViT(PiecewiseVisionTransformer):
    """timm's ``VisionTransformer`` with InfSA in its attention slot.

    Args:
        attention: ``"linear"``, ``"pure"``, or ``"softmax"`` for the twin.
        pre_logits: a D×D layer before the classifier, as in the published models.
        accumulate: pool Σ_l γˡ x⁽ˡ⁾ over the outputs x⁽ˡ⁾ of the blocks l = 1 … L, with one
            learnable γ, in place of the last output alone.
        **kwargs: timm's ``VisionTransformer`` arguments: image and patch size, width, depth,
            heads, class token or pooling, registers.

    Images (B, 3, H, W) in, logits (B, num_classes) out.
    """

    def __init__(
        self,
        *,
        attention: AttentionKind = "linear",
        pre_logits: bool = False,
        accumulate: bool = False,
        **kwargs: Any,
    ) -> None:
        if attention not in ATTENTION_LAYERS:
            raise ValueError(
                f"attention must be one of {', '.join(ATTENTION_LAYERS)}, got {attention!r}"
            )
        super().__init__(attn_layer=ATTENTION_LAYERS[attention], **kwargs)
        self.pre_logits: nn.Module = nn.Identity()
        if pre_logits:
            self.pre_logits = nn.Sequential(nn.Linear(self.embed_dim, self.embed_dim), nn.Tanh())
        self.accumulation_logit = nn.Parameter(torch.zeros(())) if accumulate else None

    def reset_parameters(self) -> None:
        """Start the accumulation at γ = ½."""
        if self.accumulation_logit is not None:
            nn.init.zeros_(self.accumulation_logit)

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Token features before pooling: images (B, 3, H, W) to (B, N, D)."""
        if self.accumulation_logit is None:
            features: Tensor = super().forward_features(x, attn_mask, is_causal)
            return features
        if attn_mask is not None or is_causal:
            raise ValueError("accumulate=True takes no attention mask")
        x = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
        gamma = torch.sigmoid(self.accumulation_logit)
        weight, total = gamma, torch.zeros_like(x)
        for block in self.blocks:
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
            total = total + weight * x
            weight = weight * gamma
        out: Tensor = self.norm(total)
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify: token features (B, N, D) to logits (B, num_classes)."""
        x = self.pre_logits(super().forward_head(x, pre_logits=True))
        return x if pre_logits else self.head(x)


def _cfg(input_size: int = 224, num_classes: int = 1000, file: str = "") -> dict[str, Any]:
    return {
        "file": file,
        "input_size": (3, input_size, input_size),
        "num_classes": num_classes,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "fixed_input_size": True,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


default_cfgs = generate_default_cfgs(
    {
        **{name: _cfg() for name in UNTRAINED},
        **{
            name: _cfg(112 if name.endswith("digits") else 64, 10, weights_file(name))
            for name in BUNDLED
        },
    }
)


def _infvit(variant: str, pretrained: bool, arguments: dict[str, Any], **kwargs: Any) -> InfViT:
    model: InfViT = build_model_with_cfg(
        InfViT,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **{**arguments, **kwargs},
    )
    return model


#: The published models: width 1024, 64 heads of width 16, and a D×D layer before the classifier.
PUBLISHED = {"patch_size": 16, "embed_dim": 1024, "num_heads": 64, "pre_logits": True}
#: Small models for the embedded benchmark: 14×14 patches of 8×8 pixels.
DIGITS = {
    "patch_size": 8,
    "embed_dim": 128,
    "depth": 4,
    "num_heads": 8,
    "global_pool": "avg",
    "class_token": False,
}
#: Small models for 64×64 photographs: 8×8 patches of 8×8 pixels.
PHOTOS = {
    "patch_size": 8,
    "embed_dim": 128,
    "depth": 4,
    "num_heads": 16,
    "global_pool": "avg",
    "class_token": False,
}


@register_model
def infvit_linear_4l(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """InfViT-Linear of the paper, 4 layers, 53.5M parameters."""
    return _infvit("infvit_linear_4l", pretrained, PUBLISHED | {"depth": 4}, **kwargs)


@register_model
def infvit_pure_4l(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """InfViT with Pure InfSA, 4 layers."""
    arguments = PUBLISHED | {"depth": 4, "attention": "pure"}
    return _infvit("infvit_pure_4l", pretrained, arguments, **kwargs)


@register_model
def infvit_pure_24l(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """InfViT with Pure InfSA, 24 layers."""
    arguments = PUBLISHED | {"depth": 24, "attention": "pure"}
    return _infvit("infvit_pure_24l", pretrained, arguments, **kwargs)


@register_model
def vit_softmax_4l(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """The softmax twin of the 4-layer models."""
    arguments = PUBLISHED | {"depth": 4, "attention": "softmax"}
    return _infvit("vit_softmax_4l", pretrained, arguments, **kwargs)


@register_model
def vit_softmax_24l(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """The softmax twin of the 24-layer model."""
    arguments = PUBLISHED | {"depth": 24, "attention": "softmax"}
    return _infvit("vit_softmax_24l", pretrained, arguments, **kwargs)


@register_model
def infvit_linear_digits(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """Linear-InfSA on photo-digits."""
    return _infvit("infvit_linear_digits", pretrained, DIGITS, **kwargs)


@register_model
def infvit_pure_digits(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """Pure InfSA on photo-digits."""
    return _infvit("infvit_pure_digits", pretrained, DIGITS | {"attention": "pure"}, **kwargs)


@register_model
def vit_softmax_digits(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """The softmax twin on photo-digits."""
    return _infvit("vit_softmax_digits", pretrained, DIGITS | {"attention": "softmax"}, **kwargs)


@register_model
def infvit_linear_photos(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """Linear-InfSA on ten classes of Tiny-ImageNet."""
    return _infvit("infvit_linear_photos", pretrained, PHOTOS, **kwargs)


@register_model
def infvit_pure_photos(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """Pure InfSA on ten classes of Tiny-ImageNet."""
    return _infvit("infvit_pure_photos", pretrained, PHOTOS | {"attention": "pure"}, **kwargs)


@register_model
def vit_softmax_photos(pretrained: bool = False, **kwargs: Any) -> InfViT:
    """The softmax twin on ten classes of Tiny-ImageNet."""
    return _infvit("vit_softmax_photos", pretrained, PHOTOS | {"attention": "softmax"}, **kwargs)


def load(
    model: str | os.PathLike[str] | nn.Module,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    pretrained: bool = True,
    device: str | torch.device = "cpu",
    **kwargs: Any,
) -> nn.Module:
    """A model, in eval mode, with its weights.

    Args:
        model: a bundled name; a name in timm's registry or ``hf-hub:…`` (with its pretrained
            weights); the path of a checkpoint from :func:`infsa_explain.models.checkpoints.save`;
            or an ``nn.Module``.
        checkpoint: weights for ``model``, instead of the pretrained ones: safetensors, or a
            torch file, which is read as data only. The names of wrappers before those of the
            weights, and state dicts in others, do not matter; of several sets of weights the
            averaged one is taken (an EMA, or DINO's teacher).
        pretrained: whether a name without a checkpoint comes with its pretrained weights; an
            untrained model has to be asked for.
        device: where to put it.
        **kwargs: arguments of the model. With another ``img_size`` than the weights are for, the
            position embedding is resampled; with another ``num_classes``, the classifier is new.
            Without ``num_classes`` a name has as many classes as the checkpoint; an ``nn.Module``
            must have as many.

    Returns:
        The model, with ``class_names``, a list or None.

    Raises:
        ValueError: for an unknown name (the nearest are named), a checkpoint that does not fit
            (missing, unexpected and misshapen keys are named), or weights that cannot be had.

    Warns:
        UserWarning: where a checkpoint leaves a choice (several sets of weights, or others beside
            them), or its position embedding is, or looks as if it were, of another grid with as
            many patches.

    >>> load("infvit_linear_digits").class_names[:3]
    ['0', '1', '2']
    """
    weights: dict[str, Tensor] | None = None
    metadata: dict[str, str] = {}
    _check_sizes(**kwargs)
    if checkpoint is None and not isinstance(model, nn.Module) and _is_path(model):
        checkpoint = model
    if checkpoint is not None:
        weights, metadata = read_checkpoint(checkpoint)
    if checkpoint is model:
        if "architecture" not in metadata:
            noted = f" (it notes {metadata['arch']!r})" if "arch" in metadata else ""
            raise ValueError(
                f"{model} does not say which model it is for{noted}; name one, with "
                "checkpoint set to this file"
            )
        model = metadata["architecture"]
    changes: dict[str, Any] = {}
    if isinstance(model, nn.Module):
        built = model
    elif weights is None:
        built = _from_registry(os.fspath(model), pretrained, **kwargs)
        if pretrained and model in BUNDLED:
            _, metadata = read_checkpoint(weights_file(str(model)))
    elif str(model).split(".")[0] == metadata.get("architecture"):
        _must_be_known(metadata["architecture"])
        changes = {key: kwargs.pop(key) for key in ("img_size", "num_classes") if key in kwargs}
        built = rebuild(metadata, **kwargs)
    else:
        changes = {"num_classes": kwargs.pop("num_classes", None)}
        built = _with_classifier_of(weights, os.fspath(model), kwargs, str(checkpoint))
    if weights is not None:
        fit(built, weights, str(checkpoint), size=recorded_size(metadata))
        change(built, **changes)
    _check_grid(built, kwargs)
    names = json.loads(metadata.get("classes", "null"))
    if names and len(names) != getattr(built, "num_classes", len(names)):
        names = None  # another classifier was asked for
    class_names: Any = names or getattr(built, "class_names", None)
    built.class_names = class_names
    return built.to(device).eval()


def _from_registry(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    on_hub = name.startswith(("hf-hub:", "hf_hub:"))
    if not on_hub and not name.startswith("local-dir:"):
        _must_be_known(name)
    asks = on_hub or (pretrained and name not in BUNDLED)
    with hub_or_cache() if asks else nullcontext(True) as reachable:
        try:
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **kwargs)
        except (OSError, RuntimeError, ConnectionError) as error:
            from ..memory import out_of_memory  # which imports this module

            if out_of_memory(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if not reachable:
                reason = "Hugging Face's hub cannot be reached, and its cache lacks them"
            how = " with pretrained weights" if pretrained or on_hub else ""
            given = "".join(f" and {key}={value!r:.40}" for key, value in kwargs.items())
            raise ValueError(f"cannot load {name!r}{how}{given}: {reason}") from error
    return model


def _with_classifier_of(
    weights: dict[str, Tensor], name: str, kwargs: dict[str, Any], source: str
) -> nn.Module:
    """A model from the registry with as many classes as the weights are for."""
    model = _from_registry(name, False, **kwargs)
    named = cast(Any, model).pretrained_cfg.get("classifier") or ()
    heads = (named,) if isinstance(named, str) else tuple(named)  # a distilled model has two
    state = model.state_dict()
    own = own_weights(
        model, weights, source, optional={key for key in state if key.startswith(heads)}
    )
    classifier = f"{heads[0]}.weight" if heads else ""
    classes = len(own.get(classifier, ()))
    if classes == len(state.get(classifier, ())):
        return model
    return _from_registry(name, False, num_classes=classes, **kwargs)


def _check_sizes(*, img_size: Any = None, num_classes: int | None = None, **others: Any) -> None:
    """Refuse sizes that make no model."""
    sides = img_size if isinstance(img_size, (tuple, list)) else (img_size,)
    for side in () if img_size is None else sides:
        count().require("img_size", side)
    if num_classes is not None:
        count(0).require("num_classes", num_classes)


def _check_grid(model: Any, arguments: dict[str, Any]) -> None:
    """Refuse images smaller than a patch, of which timm builds a model all the same."""
    patches = getattr(model, "patch_embed", None)
    if 0 in (getattr(patches, "grid_size", None) or ()):
        raise ValueError(
            f"img_size must be at least a patch, {cast(Any, patches).patch_size}, got "
            f"{arguments.get('img_size')}"
        )


def _is_path(model: str | os.PathLike[str]) -> bool:
    """Whether what is to be loaded is a file or folder, and no name in timm's registry."""
    return is_checkpoint(model) or (os.path.exists(model) and not timm.is_model(str(model)))


def _must_be_known(name: str) -> None:
    if not timm.is_model(name.split(".")[0]):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"unknown model {name!r}{hint} (`models` lists them)")


def untrained(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model with freshly initialised weights; the caller's random state is kept.

    timm's models say how they are initialised (``init_weights``); Hugging Face's are built anew
    from their ``config``, torchvision's from what they keep of their arguments.

    Raises:
        ValueError: if the model says neither.
    """
    fresh = copy.deepcopy(unwrapped(model))
    if vit_of(fresh) is not fresh:
        return _untrained_around(fresh, seed)
    model = unwrapped(model)
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if type(model).__module__.startswith("transformers."):
            _take(fresh, cast(Any, type(model))(cast(Any, model).config))
        elif is_torchvision(model):
            _take(fresh, anew(model))
        elif hasattr(model, "init_weights"):
            for module in fresh.modules():  # what init_weights leaves out in some releases of timm
                if hasattr(module, "reset_parameters"):
                    cast(Any, module).reset_parameters()
            torch.manual_seed(seed)
            cast(Any, fresh).init_weights()
        else:
            raise ValueError(
                f"{type(model).__name__} has no init_weights() to untrain a copy of it"
            )
    return fresh


def _untrained_around(fresh: nn.Module, seed: int) -> nn.Module:
    """The model whose ViT, and all else that can be reset, is made anew in place."""
    vit = vit_of(fresh)
    with torch.no_grad():
        own = {id(module) for module in vit.modules()}
        with _DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in fresh.modules():
                if id(module) not in own and hasattr(module, "reset_parameters"):
                    cast(Any, module).reset_parameters()
        fit(vit, untrained(vit, seed).state_dict(), "the ViT built anew")
    return fresh


#: All threads share the generator that weights are drawn from.
_DRAWING = RLock()


def _take(model: nn.Module, other: nn.Module) -> None:
    """Take another's weights; γ, which only a converted model has, as in a new layer."""
    gammas = {
        name: torch.full_like(value, math.log(INITIAL_GAMMA / (1 - INITIAL_GAMMA)))
        for name, value in model.state_dict().items()
        if name.endswith(".gamma_logit")
    }
    fit(model, {**other.state_dict(), **gammas}, "the model built anew")
