"""Conversion: the layers compute InfSA of their own q, k and v, and nothing else changes."""

from __future__ import annotations

import copy
import io

import pytest
import timm
import torch
import torchvision
from timm.models import VisionTransformer
from timm.models.eva import Eva
from torch import nn

from infsa_explain import capture, convert, load
from infsa_explain.attention.layers import linear_infsa, pure_infsa
from infsa_explain.models.infvit import InfViT
from infsa_explain.vits import attention_kinds

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
FUNCTIONS = {"linear": linear_infsa, "pure": pure_infsa}


def timm_vit(**arguments):
    return VisionTransformer(**SMALL, num_classes=5, **arguments)


def torchvision_vit():
    return torchvision.models.VisionTransformer(32, 8, 3, 2, 24, 48, num_classes=5)


def hugging_face(name):
    def build():
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{name}Config")(
            hidden_size=24,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=48,
            image_size=32,
            patch_size=8,
            num_labels=5,
        )
        return getattr(transformers, f"{name}ForImageClassification")(config)

    return build


MODELS = {
    "timm": timm_vit,
    "timm, qk_norm": lambda: timm_vit(qk_norm=True, init_values=0.1),
    "timm, registers": lambda: timm_vit(reg_tokens=2, class_token=False, global_pool="avg"),
    "torchvision": torchvision_vit,
    "Hugging Face ViT": hugging_face("ViT"),
    "Hugging Face DeiT": hugging_face("DeiT"),
    "Hugging Face Dinov2": hugging_face("Dinov2"),
    "Hugging Face Dinov2WithRegisters": hugging_face("Dinov2WithRegisters"),
}


def images(batch=2):
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def logits(model, x=None):
    output = model(images() if x is None else x)
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    model = MODELS[request.param]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
            elif parameter.std() == 0 and parameter.mean() == 0:  # biases, else zero
                parameter.normal_(std=0.1)
    return model


@pytest.fixture(params=["linear", "pure"])
def kind(request):
    return request.param


def attention_layers(model):
    names = ("Attention", "InfSA", "Multihead", "Projected")
    return {n: m for n, m in model.named_modules() if any(x in type(m).__name__ for x in names)}


def by_hand(layer, x, kind):
    """The original layer's own q, k and v through attention.py's functions, then projected."""
    if isinstance(layer, nn.MultiheadAttention):
        q, k, v = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
        out = layer.out_proj
    elif hasattr(layer, "qkv"):
        q, k, v = layer.qkv(x).chunk(3, -1)
        out = layer.proj
    else:
        q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
        out = layer.o_proj
    q, k, v = (part.view(*x.shape[:2], 2, 12).transpose(1, 2) for part in (q, k, v))
    if hasattr(layer, "q_norm"):
        q, k = layer.q_norm(q), layer.k_norm(k)
    heads = FUNCTIONS[kind](q, k, v, 0.95)
    return out(heads.transpose(1, 2).reshape(*x.shape[:2], 24))


@torch.no_grad()
def test_layers_compute_infsa_of_their_own_queries_keys_and_values(model, kind):
    originals = attention_layers(model)
    calls = {}
    converted = convert(model, kind)
    layers = attention_layers(converted)
    for name, layer in layers.items():
        layer.register_forward_hook(
            lambda m, args, output, name=name: calls.__setitem__(name, (args[0], output))
        )
    logits(converted)
    assert calls.keys() == originals.keys() == layers.keys()
    assert len(calls) == 3
    for name, (x, output) in calls.items():
        output = output[0] if isinstance(output, tuple) else output
        expected = by_hand(originals[name], x, kind)
        assert expected.std() > 1e-3
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_converted_model_is_captured_as_what_it_is(model, kind):
    graphs = capture(convert(model, kind), images())
    originals = capture(model, images())
    assert [layer.kind for layer in graphs.layers] == [kind] * 3
    for gamma in graphs.gammas:
        torch.testing.assert_close(gamma, torch.full((2,), 0.95), rtol=0, atol=1e-6)
    first, original = graphs.operators[0], originals.operators[0]
    assert torch.equal(first.q, original.q)
    assert torch.equal(first.k, original.k)
    assert (graphs.logits - originals.logits).abs().max() > 1e-3


@torch.no_grad()
def test_back_to_softmax_is_the_same_model_to_the_last_bit(model, kind):
    before = logits(model)
    back = convert(convert(model, kind), "softmax")
    assert torch.equal(logits(back), before)
    assert [type(m) for m in back.modules()] == [type(m) for m in model.modules()]
    state, original = back.state_dict(), model.state_dict()
    assert list(state) == list(original)
    assert all(torch.equal(state[key], original[key]) for key in state)
    for module, other in zip(back.modules(), model.modules(), strict=True):
        assert vars(module).keys() == vars(other).keys()
    again = convert(convert(convert(convert(model, "linear"), "pure"), "linear"), "softmax")
    assert torch.equal(logits(again), before)


def test_the_argument_is_untouched_and_the_copy_shares_nothing(model, kind):
    state = copy.deepcopy(model.state_dict())
    classes = [type(m) for m in model.modules()]
    converted = convert(model, kind)
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.zero_()
    assert [type(m) for m in model.modules()] == classes
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert type(converted) is type(model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_dtype_mode_and_flags_are_kept(model, kind, dtype):
    model.to(dtype).train()
    list(attention_layers(model).values())[1].eval()
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    converted = convert(model, kind)
    parameters = dict(converted.named_parameters())
    extra = [name for name in parameters if name.endswith("gamma_logit")]
    assert len(extra) == 3
    assert all(parameters[name].shape == (2,) for name in extra)
    assert all(parameters[name].requires_grad for name in extra)
    assert {p.dtype for p in parameters.values()} == {dtype}
    originals = dict(model.named_parameters())
    assert parameters.keys() - set(extra) == originals.keys()
    for name, original in originals.items():
        assert torch.equal(parameters[name], original)
        assert parameters[name].requires_grad == original.requires_grad
    modes = [m.training for m in converted.modules()]
    assert modes == [m.training for m in model.modules()]
    assert modes.count(False) == len(list(list(attention_layers(model).values())[1].modules()))
    assert logits(converted, images().to(dtype)).dtype == dtype


def test_on_the_meta_device(kind):
    with torch.device("meta"):
        model = timm_vit()
    assert {p.device.type for p in convert(model, kind).parameters()} == {"meta"}


def test_gradients_reach_gamma_and_every_weight(model, kind):
    converted = convert(model, kind).train()
    logits(converted).square().sum().backward()
    for name, layer in attention_layers(converted).items():
        for key, parameter in layer.named_parameters():
            assert parameter.grad is not None, (name, key)
            assert parameter.grad.abs().max() > 0, (name, key)


@torch.no_grad()
def test_pure_and_linear_keep_their_gamma(model):
    pure = convert(model, "pure")
    for layer in attention_layers(pure).values():
        layer.gamma_logit.copy_(torch.tensor([-1.0, 1.0]))
    gammas = capture(convert(pure, "linear"), images()).gammas
    for gamma in gammas:
        torch.testing.assert_close(gamma, torch.tensor([-1.0, 1.0]).sigmoid(), rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_converted_model_can_be_saved_whole(model, kind):
    converted = convert(model, kind)
    file = io.BytesIO()
    torch.save(converted, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(logits(again), logits(converted))
    assert torch.equal(logits(convert(again, "softmax")), logits(model))


# ---------------------------------------------------------------- which layers


def kinds(model):
    return [layer.kind for layer in capture(model, images()).layers]


def test_some_layers(model):
    s = "softmax"
    assert kinds(convert(model, "linear", -1)) == [s, s, "linear"]
    assert kinds(convert(model, "linear", layers=[0, -1])) == ["linear", s, "linear"]
    assert kinds(convert(model, "pure", layers=range(1, 3))) == [s, "pure", "pure"]
    assert kinds(convert(model, "pure", layers="*[._]1.*")) == [s, "pure", s]
    mixed = convert(convert(model, "linear", 0), "pure", 2)
    assert kinds(mixed) == ["linear", s, "pure"]
    assert kinds(convert(mixed, "softmax", [0])) == [s, s, "pure"]
    assert kinds(convert(model, "linear", [])) == [s, s, s]


def test_patterns():
    assert kinds(convert(timm_vit(), "pure", "blocks.[01].attn")) == ["pure", "pure", "softmax"]
    converted = convert(torchvision_vit(), "linear", "*encoder_layer_2.*")
    assert kinds(converted) == ["softmax", "softmax", "linear"]
    with pytest.raises(ValueError, match=r"no attention layer is called 'layer4'; there are \['bl"):
        convert(timm_vit(), "pure", "layer4")


@pytest.mark.parametrize("layers", [3, -4, [0, 3], [1.0], ["blocks.0.attn"], True, 1.5])
def test_layers_out_of_range(layers):
    message = (
        r"out of range: the model has 3 \(layer 0 to 2\)|layer must be a whole number or 'last'"
    )
    with pytest.raises(ValueError, match=message):
        convert(timm_vit(), "linear", layers)


def test_the_last_layer_by_name():
    assert kinds(convert(timm_vit(), "linear", ["last"])) == ["softmax", "softmax", "linear"]


# ---------------------------------------------------------------- a start for training


def test_the_state_dict_of_a_converted_timm_vit_is_an_infvits(tmp_path, kind):
    """So `train --init` takes it, for a name of ours with the same arguments."""
    converted = convert(timm_vit(init_values=1e-5), kind).eval()
    torch.save(converted.state_dict(), tmp_path / "start.pt")
    name = f"infvit_{kind}_digits"
    arguments = {"class_token": True, "global_pool": "token", "init_values": 1e-5, **SMALL}
    infvit = timm.create_model(name, num_classes=5, **arguments)
    load(infvit, checkpoint=tmp_path / "start.pt")
    with torch.no_grad():
        assert torch.equal(infvit(images()), converted(images()))


def test_our_own_models_convert(kind):
    twin = InfViT(attention="softmax", **SMALL).eval()
    converted = convert(twin, kind)
    native = InfViT(attention=kind, **SMALL).eval()
    native.load_state_dict(converted.state_dict())
    back = convert(native, "softmax")
    with torch.no_grad():
        assert torch.equal(native(images()), converted(images()))
        assert torch.equal(back(images()), twin(images()))
    assert attention_kinds(native) == {kind}


# ---------------------------------------------------------------- what is refused


def test_unknown_kind():
    with pytest.raises(ValueError, match="attention must be one of linear, pure, softmax, got 'x'"):
        convert(timm_vit(), "x")


def test_a_layer_without_another_form():
    eva = Eva(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn \(EvaAttention\) cannot be converted"):
        convert(eva)


def test_attention_dropout():
    vit = hugging_face("ViT")()
    for layer in vit.vit.layers:
        layer.attention.attention_dropout = 0.1
    for model in (timm_vit(attn_drop_rate=0.1), torchvision_dropping(), vit):
        with pytest.raises(ValueError, match=r"drops attention weights \(p = 0.1\), and InfSA's"):
            convert(model)
        assert convert(model, "softmax") is not model


def torchvision_dropping():
    return torchvision.models.VisionTransformer(32, 8, 3, 2, 24, 48, attention_dropout=0.1)


def test_attention_masks(kind):
    layer = convert(torchvision_vit(), kind).encoder.layers[0].self_attention
    x = torch.zeros(1, 4, 24)
    with pytest.raises(ValueError, match="InfSA takes no attention mask, got attn_mask, is_causal"):
        layer(x, x, x, attn_mask=torch.zeros(4, 4), is_causal=True)
    layer = convert(hugging_face("ViT")(), kind).vit.layers[0].attention
    with pytest.raises(ValueError, match="InfSA takes no attention mask, got attention_mask"):
        layer(x, torch.zeros(1, 1, 4, 4))


def test_models_that_cannot_be_read():
    with pytest.raises(ValueError, match="ResNet has no attention layer that can be read"):
        convert(timm.create_model("resnet10t"))
