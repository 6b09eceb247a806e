"""Make ``docs/support.md``: the registry's families, and small models that are built and tried.

Run from the checkout: ``python experiments/support_table.py``. It also writes the README's short
form, with one row per family. The tests try the same models, and compare both pages.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from timm.models import VisionTransformer
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock, ResPostBlock
from torch import Tensor, nn

import infsa_explain
from infsa_explain.attention.layers import linear_infsa, pure_infsa
from infsa_explain.methods import applicable_methods
from infsa_explain.models.infvit import InfViT
from infsa_explain.vits import attention_kinds, classifies, registry


@dataclass(frozen=True)
class Example:
    """A model of a family.

    Attributes:
        name: as in the table.
        build: makes a small one.
        prefix: its prefix tokens.
        size: of its images, (height, width).
        patch: the side of a patch.
        converts: whether its attention can be converted.
        refused: what the refusal says, for a model that is refused.
    """

    name: str
    build: Callable[[], nn.Module]
    prefix: int = 1
    size: tuple[int, int] = (32, 32)
    patch: int = 8
    converts: bool = True
    refused: str = ""

    def model(self) -> nn.Module:
        """The model, in eval mode, with weights that make its graphs far from uniform."""
        torch.manual_seed(0)
        model = self.build().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.2)
        return model

    def images(self, batch: int = 2) -> Tensor:
        """Noise of the model's size, (B, 3, H, W)."""
        return torch.randn(batch, 3, *self.size, generator=torch.Generator().manual_seed(1))

    @property
    def grid(self) -> tuple[int, int]:
        """Its patch grid."""
        return self.size[0] // self.patch, self.size[1] // self.patch


POSITION_BIAS = "bias of the tokens' relative position"
WINDOWS = "attends within windows, or over grids of different sizes"
SMALL: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def timm_vit(cls: type[nn.Module] = VisionTransformer, **arguments: Any) -> Callable[[], nn.Module]:
    """Build a model of timm's."""
    return lambda: cls(**{"img_size": 32, "patch_size": 8, **SMALL, **arguments})


def timm_name(name: str) -> Callable[[], nn.Module]:
    """Build a model of timm's registry."""
    return lambda: timm.create_model(name)


def torchvision_vit() -> nn.Module:
    """A small torchvision model."""
    return torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=5)


def hugging_face(name: str, config: str, **arguments: Any) -> Callable[[], nn.Module]:
    """Build a model of transformers', from its configuration alone."""

    def build() -> nn.Module:
        import transformers

        settings = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
            "num_labels": 5,
            **arguments,
        }
        model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**settings))
        return model

    return build


class ReleasedLayer(nn.Module):
    """A stand-in for the layers that the authors released, of their shape."""

    def __init__(self, variant: str, dim: int, num_heads: int) -> None:
        super().__init__()
        self.variant, self.num_heads = variant, num_heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.v_proj, self.out_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.rho_logit = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Attend: tokens (B, N, D) to (B, N, D)."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (registry.split_heads(linear(x), self.num_heads) for linear in projections)
        function = pure_infsa if self.variant == "pure_infsa" else linear_infsa
        out: Tensor = self.out_proj(
            registry.merge_heads(function(q, k, v, self.rho_logit.sigmoid()))
        )
        return out


def released(variant: str) -> Callable[[], nn.Module]:
    """A timm model whose attention was swapped for the released layers."""

    def build() -> nn.Module:
        model: Any = timm_vit()()
        for block in model.blocks:
            block.attn = ReleasedLayer(variant, 32, 2)
        return model  # type: ignore[no-any-return]

    return build


AVERAGE = {"class_token": False, "global_pool": "avg"}

EXAMPLES = [
    Example("InfViT linear", timm_vit(InfViT, attention="linear")),
    Example("InfViT pure", timm_vit(InfViT, attention="pure")),
    Example("timm ViT", timm_vit()),
    Example("timm ViT, average pooling", timm_vit(**AVERAGE), 0),
    Example("timm ViT, attention pooling", timm_vit(global_pool="map", class_token=False), 0),
    Example("timm ViT, registers", timm_vit(reg_tokens=4), 5),
    Example("timm ViT, qk_norm and LayerScale", timm_vit(qk_norm=True, init_values=0.1)),
    Example("timm ViT, patch 14", timm_vit(img_size=42, patch_size=14), 1, (42, 42), 14),
    Example("timm ViT, patch 16", timm_vit(img_size=48, patch_size=16), 1, (48, 48), 16),
    Example("timm ViT, patch 32", timm_vit(img_size=96, patch_size=32), 1, (96, 96), 32),
    Example("timm ViT, not square", timm_vit(img_size=(24, 40)), 1, (24, 40)),
    Example("timm ViT, dynamic_img_size", timm_vit(dynamic_img_size=True), 1, (16, 48)),
    Example("timm ViT, norm after attention", timm_vit(block_fn=ResPostBlock)),
    Example("timm ViT, parallel attention", timm_vit(block_fn=ParallelThingsBlock)),
    Example("timm ViT-22B block", timm_vit(block_fn=ParallelScalingBlock), converts=False),
    Example("timm DeiT, distilled", timm_vit(VisionTransformerDistilled), 2),
    Example("timm EVA-02", timm_vit(Eva, use_rot_pos_emb=True), converts=False),
    Example(
        "timm rotary ViT, registers",
        timm_vit(Eva, attn_type="rope", use_rot_pos_emb=True, rope_type="mixed", num_reg_tokens=2),
        3,
        converts=False,
    ),
    Example(
        "timm rotary ViT, grouped queries",
        timm_vit(Eva, attn_type="rope", use_rot_pos_emb=True, num_kv_heads=1, qkv_fused=False),
        converts=False,
    ),
    Example("timm BEiT without position bias", timm_vit(Beit), converts=False),
    Example("timm NaFlexViT", timm_vit(NaFlexVit, pos_embed_grid_size=(4, 4)), 0),
    Example("torchvision ViT", torchvision_vit),
    Example("Hugging Face ViT", hugging_face("ViTForImageClassification", "ViTConfig")),
    Example("Hugging Face ViT, no classifier", hugging_face("ViTModel", "ViTConfig")),
    Example(
        "Hugging Face DeiT, distilled",
        hugging_face("DeiTForImageClassificationWithTeacher", "DeiTConfig"),
        2,
    ),
    Example("Hugging Face Dinov2", hugging_face("Dinov2Model", "Dinov2Config"), 1, (24, 48)),
    Example(
        "Hugging Face Dinov2WithRegisters",
        hugging_face(
            "Dinov2WithRegistersForImageClassification",
            "Dinov2WithRegistersConfig",
            num_register_tokens=4,
        ),
        5,
    ),
    Example("released Pure InfSA in a timm ViT", released("pure_infsa"), converts=False),
    Example("released Linear-InfSA in a timm ViT", released("linear_infsa"), converts=False),
    Example("timm BEiT", timm_vit(Beit, use_rel_pos_bias=True), refused=POSITION_BIAS),
    Example(
        "timm BEiT, shared position bias",
        timm_vit(Beit, use_shared_rel_pos_bias=True),
        refused="it is given shared_rel_pos_bias, which a token graph does not hold",
    ),
    Example("timm ViT, relative position", timm_name("test_vit_relpos"), refused=POSITION_BIAS),
    Example("timm ViT, differential", timm_vit(attn_layer="diff"), refused="can be negative"),
    Example("timm CaiT", timm_name("cait_xxs24_224"), refused="mixes its heads"),
    Example("timm ConViT", timm_name("convit_tiny"), refused="learned positions"),
    Example("timm XCiT", timm_name("xcit_nano_12_p16_224"), refused="between channels"),
    Example("timm Swin", timm_name("swin_tiny_patch4_window7_224"), refused=WINDOWS),
    Example("timm MViT", timm_name("mvitv2_tiny"), refused=WINDOWS),
    Example("timm PVT", timm_name("pvt_v2_b0"), refused=WINDOWS),
    Example("timm PiT", timm_name("pit_ti_224"), refused=WINDOWS),
    Example("torchvision Swin", torchvision.models.swin_t, refused=WINDOWS),
    Example("timm ResNet", timm_name("resnet10t"), refused="no attention layer that can be read"),
]


def registered() -> str:
    """The families and the attention layers of the registry, in Markdown."""
    lines = ["| family | models | fill `drop` |", "| --- | --- | --- |"]
    for family in sorted(registry.FAMILIES, key=lambda family: family.name):
        summary = (family.__doc__ or "").partition("\n")[0].rstrip(".")
        drops = "no" if type(family).drop is registry.Family.drop else "yes"
        lines.append(f"| {family.name} | {summary} | {drops} |")
    lines += ["", "| attention layer | kind | file in `infsa_explain/vits/` |"]
    lines += ["| --- | --- | --- |"]
    rows = {
        (reader.read.__module__.rpartition(".")[2], reader.name, reader.kind)
        for reader in registry.ATTENTION
    }
    lines += [f"| `{name}` | {kind} | `{file}.py` |" for file, name, kind in sorted(rows)]
    return "\n".join(lines)


def tried(example: Example) -> tuple[str, str, str]:
    """What the table says of a model: whether it is captured, converted, and by which methods."""
    model, images = example.model(), example.images()
    try:
        kinds = attention_kinds(model)
        target = None if classifies(model) else "embedding"
        for method in applicable_methods(kinds):
            infsa_explain.explain(model, images, method, target=target)
    except ValueError as error:
        return f"no: {error}".partition(" (known")[0], "", ""
    try:
        infsa_explain.convert(model, "linear")
        converted = "yes"
    except ValueError:
        converted = "no"
    number = len(applicable_methods(kinds))
    methods = f"all {number} for {', '.join(kinds)} attention"
    return "yes", converted, methods + ("" if target is None else ', `target="embedding"`')


def table() -> str:
    """The table in Markdown; families that are not installed are left out."""
    lines = ["| model | capture | convert | methods |", "| --- | --- | --- | --- |"]
    for example in EXAMPLES:
        if not example.name.startswith("Hugging Face") or importlib.util.find_spec("transformers"):
            lines.append(f"| {' | '.join((example.name, *tried(example)))} |")
    return "\n".join(lines)


def short(table: str) -> str:
    """The table with a row for every family's models of one outcome, those refused by name."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for line in table.splitlines()[2:]:
        name, capture, converted, methods = (cell.strip() for cell in line.split("|")[1:-1])
        family = next(title for title in TITLES if name.startswith(title))
        outcome = (capture, converted, re.sub(r" \d+ for .*", "", methods))
        key = (family, *(("no", "", "") if capture != "yes" else outcome))
        groups.setdefault(key, []).append(name.removeprefix(family).strip(", "))
    lines = ["| models | capture | convert | methods |", "| --- | --- | --- | --- |"]
    for (family, *outcome), names in groups.items():
        lines.append(f"| {family}: {'; '.join(names)} | {' | '.join(outcome)} |")
    return "\n".join(lines)


def with_short(readme: str, table: str) -> str:
    """The README with the short form of a table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{short(table)}\n{END}{after}"


TITLES = ("InfViT", "timm", "torchvision", "Hugging Face", "released")
BEGIN, END = "<!-- support: experiments/support_table.py -->", "<!-- end of support -->"
HEAD = """# Which Vision Transformers can be read

`experiments/support_table.py` makes this page. The tests compare it.

## Families in the registry

A family is a class in one file, and so is one of your own (`tests/vits/test_extension.py`). The
attention layers of the second table are read in models of any family.

{registered}

## Models that were tried

Each is small, built and tried with every method that suits it. The tests try the same models.
Hugging Face's models need the extra `hf`.

"""

if __name__ == "__main__":
    made, front = table(), Path(__file__).parents[1] / "README.md"
    page = HEAD.format(registered=registered()) + made + "\n"
    (Path(__file__).parents[1] / "docs" / "support.md").write_text(page)
    front.write_text(with_short(front.read_text(), made))
