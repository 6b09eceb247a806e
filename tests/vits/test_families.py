"""Models of every family, as the support table builds them: captured, explained, or refused."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from small_vits import attend_by, explicit_attention
from supported_models import DOCS, support_table
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import EvaAttention
from timm.models.vision_transformer import ParallelScalingBlock
from torch import nn

import infsa_explain
from infsa_explain import capture, explain, preprocess
from infsa_explain.attention.layers import LinearInfSA, PureInfSA
from infsa_explain.methods import applicable_methods
from infsa_explain.methods.backward import attention_matrix, gradients
from infsa_explain.vits import (
    Family,
    Layout,
    Reading,
    attention_kinds,
    classifies,
    register_attention,
    register_family,
    registry,
)
from infsa_explain.vits.preprocessing import data_config
from infsa_explain.vits.tokens import drop_fill

TABLE = support_table()
EXAMPLES = {example.name: example for example in TABLE.EXAMPLES}
SUPPORTED = [name for name, example in EXAMPLES.items() if not example.refused]
REFUSED = [name for name, example in EXAMPLES.items() if example.refused]
CLASS_TOKEN = [name for name in SUPPORTED if EXAMPLES[name].prefix]


def built(name):
    if name.startswith("Hugging Face"):
        pytest.importorskip("transformers")
    example = EXAMPLES[name]
    return example, example.model(), example.images()


def logits_of(output):
    if isinstance(output, torch.Tensor):
        return output
    return output["logits"] if "logits" in output else output["pooler_output"]


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# ---------------------------------------------------------------- capture


@pytest.mark.parametrize("name", SUPPORTED)
def test_logits_are_the_same_to_the_last_bit(name):
    example, model, images = built(name)
    with torch.no_grad():
        before = logits_of(model(images))
        graphs = capture(model, images)
        after = logits_of(model(images))
    assert torch.equal(graphs.logits, before)
    assert torch.equal(after, before)
    assert before.std() > 0
    assert graphs.grid == example.grid
    assert graphs.num_prefix_tokens == example.prefix
    tokens = example.prefix + example.grid[0] * example.grid[1]
    assert {op.shape for op in graphs.operators} == {(2, 2, tokens)}
    assert len(graphs.layers) == (4 if "parallel" in name else 2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SUPPORTED)
def test_the_model_is_left_as_found(name, training):
    _, model, images = built(name)
    model.train(training)
    logits_of(model(images)).sum().backward()
    parameters = dict(model.named_parameters())
    frozen = next(iter(parameters.values())).requires_grad_(False)
    state = copy.deepcopy(model.state_dict())
    grads = {key: p.grad.clone() for key, p in parameters.items() if p.grad is not None}
    assert not capture(model, images).logits.requires_grad
    assert hooks(model) == 0
    assert torch.is_grad_enabled()
    assert {m.training for m in model.modules()} == {training}
    assert [p for p in parameters.values() if not p.requires_grad] == [frozen]
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert {key for key, p in parameters.items() if p.grad is not None} == grads.keys()
    assert all(torch.equal(parameters[key].grad, grad) for key, grad in grads.items())


@pytest.mark.parametrize("name", SUPPORTED)
def test_hooks_are_removed_after_an_exception(name):
    _, model, images = built(name)

    def fail(*_):
        raise RuntimeError("on purpose")

    last = [m for m in model.modules() if registry.attention_of(m)][-1]
    handle = last.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        capture(model, images)
    handle.remove()
    assert hooks(model) == 0


def maps_of_timm(model, images):
    """timm, told not to fuse, hands its attention map to attn_drop."""
    maps = []
    for module in model.modules():
        if hasattr(module, "fused_attn") and hasattr(module, "attn_drop"):
            module.fused_attn = False
            module.attn_drop.register_forward_pre_hook(lambda m, args: maps.append(args[0]))
    model(images)
    return maps


def maps_of_torchvision(model, images):
    """PyTorch's own layer, asked for its weights."""
    inputs = []
    layers = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    for layer in layers:
        layer.register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    model(images)
    return [
        nn.MultiheadAttention.forward(
            layer, x, x, x, need_weights=True, average_attn_weights=False
        )[1]
        for layer, x in zip(layers, inputs, strict=True)
    ]


def maps_of_hugging_face(model, images):
    """Transformers' eager attention, asked for its weights."""
    model.set_attn_implementation("eager")
    return list(model(images, output_attentions=True).attentions)


SOFTMAX = [name for name in SUPPORTED if not name.startswith(("InfViT", "released"))]
TRUTH = {
    "timm": maps_of_timm,
    "torchvision": maps_of_torchvision,
    "Hugging": maps_of_hugging_face,
}


@torch.no_grad()
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_graphs_are_the_models_own_maps(name):
    _, model, images = built(name)
    graphs = capture(model, images)
    maps = TRUTH[name.split()[0]](model, images)
    for layer, expected in zip(graphs.layers, maps, strict=True):
        assert layer.kind == "softmax"
        assert expected.std() > 0.005
        torch.testing.assert_close(layer.operator.dense(), expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(layer.gamma, [0.95, 0.95], atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["pure", "linear"])
def test_graphs_of_the_released_layers(variant):
    """Â = relu(q kᵀ / d) / ‖·‖_F of the layer's own projections, in float64; γ = sigmoid(2)."""
    example = EXAMPLES[next(n for n in SUPPORTED if n.startswith(f"released {variant.title()}"))]
    model, inputs = example.model(), []
    layer = model.blocks[1].attn
    layer.register_forward_pre_hook(lambda m, args: inputs.append(args[0].double().numpy()))
    graphs = capture(model, example.images())
    (x,) = inputs
    q, k = (
        (x @ linear.weight.double().numpy().T + linear.bias.double().numpy())
        .reshape(*x.shape[:2], 2, 16)
        .swapaxes(1, 2)
        for linear in (layer.q_proj, layer.k_proj)
    )
    affinity = np.maximum(q @ k.swapaxes(-1, -2) / 16, 0)
    truth = affinity / (np.linalg.norm(affinity, axis=(-2, -1), keepdims=True) + 1e-6)
    np.testing.assert_allclose(graphs.operators[1].dense(), truth, rtol=0, atol=1e-6)
    np.testing.assert_allclose(graphs.gammas[1], [1 / (1 + np.exp(-2))] * 2, atol=1e-6)
    assert attention_kinds(model) == {variant}


@pytest.mark.shared
@pytest.mark.parametrize("variant", ["pure_infsa", "linear_infsa"])
def test_the_stand_in_is_the_released_layer(shared, variant):
    with np.load(shared / "golden" / "infsa_reference.npz") as file:
        golden = {key: torch.from_numpy(file[key]) for key in file}
    layer = TABLE.ReleasedLayer(variant, 24, 3)
    prefix = f"{variant}."
    layer.load_state_dict(
        {
            key.removeprefix(prefix): value
            for key, value in golden.items()
            if key.startswith(prefix) and not key.endswith("module_out")
        }
    )
    out = layer(golden["x"])
    torch.testing.assert_close(out, golden[f"{prefix}module_out"], rtol=0, atol=1e-5)


def test_one_gamma_a_head_in_a_released_layer():
    example = EXAMPLES["released Pure InfSA in a timm ViT"]
    model = example.model()
    model.blocks[0].attn.rho_logit = nn.Parameter(torch.tensor([0.0, 1.0]))

    class Passing(type(model.blocks[0].attn)):
        def forward(self, x, **_):
            return x

    model.blocks[0].attn.__class__ = Passing
    gammas = capture(model, example.images()).gammas
    np.testing.assert_allclose(gammas[0], [0.5, 1 / (1 + np.exp(-1))], atol=1e-6)


@pytest.mark.parametrize("name", CLASS_TOKEN)
def test_what_the_classifier_reads(name):
    """EVA and BEiT pool over patches although they have a class token."""
    _, model, images = built(name)
    pools = name.startswith(("timm EVA", "timm rotary", "timm BEiT"))
    assert capture(model, images).reads_class_token is not pools


# ---------------------------------------------------------------- gradients


def normed_and_gated(attention):
    """A small ViT whose heads are normed and gated before they are projected."""
    model = EXAMPLES["timm ViT"].build()
    for block in model.blocks:
        block.attn = attention(32, 2, scale_norm=True, gated=True, norm_layer=nn.LayerNorm)
    return model


def converted(name, kind):
    if name.startswith("Hugging Face"):
        pytest.importorskip("transformers")
    return infsa_explain.convert(EXAMPLES[name].build(), kind)


VARIANTS = {
    **{
        f"norm and gate, {layer.__name__}": functools.partial(normed_and_gated, layer)
        for layer in (Attention, AttentionRope, EvaAttention, PureInfSA, LinearInfSA)
    },
    **{
        f"{name}, {kind}": functools.partial(converted, name, kind)
        for name in ("torchvision ViT", "Hugging Face ViT")
        for kind in ("pure", "linear")
    },
    "timm ViT-22B block, two projections": TABLE.timm_vit(
        block_fn=functools.partial(ParallelScalingBlock, fuse_out_proj=False, init_values=0.1)
    ),
}


@pytest.mark.parametrize("name", [*SUPPORTED, *VARIANTS])
def test_gradients_of_attention_are_those_of_attention_that_is_formed(name, monkeypatch):
    """∂y/∂A = g vᵀ against autograd in float64, for other classes than the predicted."""
    if name in VARIANTS:
        example = TABLE.Example(name, VARIANTS[name])
        model, images = example.model(), example.images()
    else:
        _, model, images = built(name)
    model, images, kind = model.double(), images.double(), kind_of(name)
    targets = torch.tensor([1, 3])
    graphs = capture(model, images)
    passes = gradients(graphs, targets)
    heads = [passed.heads() for passed in passes]
    found = []
    attend = explicit_attention(kind, found)
    attend_by(attend, kind, model, monkeypatch)
    monkeypatch.setattr(  # what the stand-ins of the released layers call, with one γ
        TABLE, f"{kind}_infsa", lambda q, k, v, gamma: attend(q, k, v, gamma.expand(2)), False
    )
    logits = logits_of(model(images))
    torch.testing.assert_close(logits, graphs.logits, rtol=1e-9, atol=1e-9)
    logits[[0, 1], targets].sum().backward()
    assert len(found) == len(graphs.layers) == len(passes)
    for layer, (g, v), (matrix, values) in zip(graphs.layers, heads, found, strict=True):
        torch.testing.assert_close(attention_matrix(layer), matrix, rtol=0, atol=1e-7)
        torch.testing.assert_close(v, values, rtol=0, atol=1e-9)
        assert matrix.grad.abs().max() > 1e-3
        torch.testing.assert_close(g @ v.mT, matrix.grad, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- methods


def kind_of(name):
    """What its name says."""
    return next((kind for kind in ("linear", "pure") if kind in name.lower()), "softmax")


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in SUPPORTED for method in applicable_methods({kind_of(name)})],
)
def test_every_method(name, method):
    example, model, images = built(name)
    assert attention_kinds(model) == {kind_of(name)}
    result = explain(model, images, method, target=None if classifies(model) else "embedding")
    assert result.maps.shape == (2, *example.grid)
    assert result.maps.isfinite().all()
    assert result.maps.std() > 0
    assert result.tokens.shape == (2, example.prefix + example.grid[0] * example.grid[1])


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_sentence_that_says_why(name):
    model = EXAMPLES[name].build().eval()
    config = getattr(model, "pretrained_cfg", None) or {"input_size": (3, 32, 32)}
    with pytest.raises(ValueError, match=EXAMPLES[name].refused):
        capture(model, torch.zeros(1, *config["input_size"]))
    assert hooks(model) == 0


def test_hugging_faces_other_models_are_refused():
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings |= {"intermediate_size": 16, "image_size": 32, "patch_size": 8}
    beit = transformers.BeitModel(transformers.BeitConfig(**settings))
    with pytest.raises(ValueError, match="BeitModel is refused: it adds a bias"):
        capture(beit, torch.zeros(1, 3, 32, 32))
    clip = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**settings))
    with pytest.raises(ValueError, match="no attention layer that can be read"):
        capture(clip, torch.zeros(1, 3, 32, 32))
    masked = transformers.ViTForMaskedImageModeling(transformers.ViTConfig(**settings))
    with pytest.raises(ValueError, match="got a MaskedImageModelingOutput with 'reconstruction'"):
        capture(masked, torch.zeros(1, 3, 32, 32))


def test_an_attention_mask_is_refused():
    _, model, images = built("timm ViT")
    mask = torch.zeros(17, 17)
    block = model.blocks[1]
    block.forward = lambda x, **_: x + block.attn(block.norm1(x), attn_mask=mask)
    with pytest.raises(ValueError, match=r"layer blocks.1.attn \(Attention\) .* given attn_mask"):
        capture(model, images)
    block.forward = lambda x, **_: x + block.attn(block.norm1(x), is_causal=True)
    with pytest.raises(ValueError, match="it is given is_causal, which a token graph does not"):
        capture(model, images)
    assert hooks(model) == 0


@pytest.mark.parametrize(
    "arguments", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"batch_first": False}]
)
def test_variants_of_multihead_attention_are_refused(arguments):
    _, model, images = built("torchvision ViT")
    block = model.encoder.layers[1]
    block.self_attention = nn.MultiheadAttention(32, 2, **{"batch_first": True, **arguments})
    with pytest.raises(ValueError, match=r"encoder_layer_1\.self_attention .* it has kdim, vdim"):
        capture(model, images)


@pytest.mark.parametrize("name", ["torchvision ViT", "Hugging Face ViT", "timm ViT"])
def test_images_of_a_size_that_the_model_refuses(name):
    _, model, _ = built(name)
    with pytest.raises(ValueError, match="64"):
        capture(model, torch.zeros(1, 3, 64, 64))
    with pytest.raises(ValueError, match="images of 4×32 pixels are smaller than a patch of 8×8"):
        capture(model, torch.zeros(1, 3, 4, 32))


def test_distilled_training_is_captured_as_in_eval_mode():
    _, model, images = built("timm DeiT, distilled")
    expected = model(images)
    model.train().set_distilled_training()
    assert torch.equal(capture(model, images).logits, expected)
    assert model.training


def test_attention_beside_the_blocks_that_cannot_be_read_is_listed():
    class OddAttention(nn.Module):
        pass

    _, model, images = built("timm ViT")
    model.extra = OddAttention()
    message = r"has 2 attention layers that can be read, and others: extra \(OddAttention\)"
    with pytest.raises(ValueError, match=message):
        capture(model, images)


def behind_embedding(name, model, tokens):
    """Logits of tokens (B, N, D) that have their positions, by the modules one after the other."""
    if name == "torchvision ViT":
        return model.heads(model.encoder.ln(model.encoder.layers(tokens))[:, 0])
    for layer in model.vit.layers if hasattr(model.vit, "layers") else model.vit.encoder.layer:
        tokens = layer(tokens)
        tokens = tokens[0] if isinstance(tokens, tuple) else tokens
    return model.classifier(model.vit.layernorm(tokens)[:, 0])


def embedded(name, model, images):
    if name != "torchvision ViT":
        return model.vit.embeddings(images)
    tokens = model._process_input(images)
    tokens = torch.cat([model.class_token.expand(len(images), -1, -1), tokens], 1)
    return tokens + model.encoder.pos_embedding


@pytest.mark.parametrize("name", ["torchvision ViT", "Hugging Face ViT"])
def test_tokens_are_taken_out_of_other_families_too(name):
    _, model, images = built(name)
    removed = torch.zeros(len(images), 4, 4, dtype=torch.bool)
    removed[:, 1:3, 2] = True
    tokens = embedded(name, model, images)
    kept = torch.cat([torch.ones(1, dtype=torch.bool), ~removed[0].flatten()])
    expected = behind_embedding(name, model, tokens[:, kept]).softmax(-1)
    torch.testing.assert_close(drop_fill(model)(images, removed), expected, rtol=0, atol=1e-6)


def test_families_that_do_not_say_where_tokens_are_taken_out():
    _, model, images = built("timm EVA-02")
    with pytest.raises(ValueError, match=r"taken out of Eva: its family 'timm' does not say where"):
        drop_fill(model)(images, torch.zeros(len(images), 4, 4, dtype=torch.bool))


# ---------------------------------------------------------------- a family of one's own


class Own(nn.Module):
    """Two layers whose queries and keys are the tokens themselves, 8×8 patches' means."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(OwnMixing() for _ in range(2))

    def forward(self, images):
        x = nn.functional.avg_pool2d(images, 8).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


class OwnMixing(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


def test_a_new_family_is_registered_in_one_place(monkeypatch):
    monkeypatch.setattr(registry, "ATTENTION", [*registry.ATTENTION])
    monkeypatch.setattr(registry, "FAMILIES", [*registry.FAMILIES])
    images = torch.randn(2, 3, 16, 24)
    with pytest.raises(ValueError, match="Own has no attention layer that can be read"):
        capture(Own(), images)

    @register_attention(OwnMixing, "softmax")
    def read(module, x):
        return Reading(x[:, None], x[:, None], scale=1.0)

    with pytest.raises(ValueError, match="Own does not say where its patches are"):
        capture(Own(), images)

    @register_family
    class OwnFamily(Family):
        name = "own"

        def matches(self, model):
            return isinstance(model, Own)

        def layout(self, model, images):
            return Layout((images.shape[2] // 8, images.shape[3] // 8), 0, False)

    result = explain(Own(), images, "degree")
    x = nn.functional.avg_pool2d(images, 8).flatten(2).transpose(1, 2)
    x = OwnMixing()(x)
    truth = torch.softmax(x @ x.transpose(1, 2), -1).sum(1)
    truth = (truth / truth.sum(-1, keepdim=True)).view(2, 2, 3)
    torch.testing.assert_close(result.maps, truth, rtol=0, atol=1e-6)


# ---------------------------------------------------------------- preprocessing and loading


@pytest.mark.parametrize("name", SUPPORTED)
def test_loaded_unchanged(name):
    _, model, _ = built(name)
    assert infsa_explain.load(model.train()) is model
    assert not model.training


def white(model):
    """What a white image becomes."""
    return preprocess(model, np.full((50, 70, 3), 255, np.uint8))


def test_images_for_torchvision():
    """ImageNet's mean and deviation at the model's size, the middle 7/8."""
    _, model, _ = built("torchvision ViT")
    out = white(model)
    assert out.shape == (1, 3, 32, 32)
    truth = (1 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(out[0, :, 16, 16], truth, rtol=0, atol=1e-5)
    assert data_config(model)["crop_pct"] == 0.875


@pytest.mark.parametrize(
    ("name", "value"), [("Hugging Face ViT", 1.0), ("Hugging Face Dinov2", (1 - 0.485) / 0.229)]
)
def test_images_for_hugging_face(name, value):
    """ViT's mean and deviation are 0.5, the others' ImageNet's."""
    _, model, _ = built(name)
    out = white(model)
    assert out.shape == (1, 3, 32, 32)
    np.testing.assert_allclose(out[0, 0], np.full((32, 32), value), rtol=0, atol=1e-5)


def test_images_for_a_model_that_is_told_how():
    _, model, _ = built("torchvision ViT")
    model.pretrained_cfg = {"mean": (0.2, 0.2, 0.2), "std": (0.1, 0.1, 0.1)}
    np.testing.assert_allclose(white(model), np.full((1, 3, 32, 32), 8.0), rtol=0, atol=1e-5)


def test_images_for_an_unknown_model():
    with pytest.raises(ValueError, match="Linear does not say how its images are prepared; give"):
        preprocess(nn.Linear(2, 2), np.zeros((8, 8, 3), np.uint8))


def test_transformers_is_never_imported():
    script = (
        "import sys, timm, torch, infsa_explain; m = timm.create_model('test_vit').eval(); "
        "infsa_explain.explain(m, torch.zeros(1, 3, 160, 160)); infsa_explain.convert(m); "
        "print('transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


# ---------------------------------------------------------------- the table


def test_the_table_says_what_was_tried():
    pytest.importorskip("transformers")
    rows = [line.strip("| ").split(" | ") for line in TABLE.table().splitlines()[2:]]
    assert [row[0] for row in rows] == list(EXAMPLES)
    for name, *said in rows:
        example = EXAMPLES[name]
        if example.refused:
            assert said[0].startswith("no: ")
            assert example.refused in said[0]
        else:
            assert said[:2] == ["yes", "yes" if example.converts else "no"]
            assert said[2].startswith("all ")


def test_real_architectures_of_timm():
    """A convolutional stem, DeiT-3, and rotation with attention pooling."""
    for name in (
        "vit_tiny_r_s16_p8_224",
        "deit3_small_patch16_224",
        "vit_pe_core_tiny_patch16_384",
    ):
        model = timm.create_model(name, depth=2).eval()
        size = model.pretrained_cfg["input_size"]
        assert len(capture(model, torch.zeros(1, *size)).layers) == 2


def test_the_support_tables_are_as_made():
    made = TABLE.table()
    page = (DOCS / "support.md").read_text(encoding="utf-8")
    missing = (
        set() if "Hugging Face" in made else {line for line in page.splitlines() if "| Hug" in line}
    )
    head = TABLE.HEAD.format(registered=TABLE.registered())
    assert page.startswith(head)
    rows = page.removeprefix(head).splitlines()
    assert [row for row in rows if row not in missing] == made.splitlines()
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert TABLE.with_short(readme, "\n".join(rows)) == readme
