"""InfViT in timm's registry, and `load` of everything that it takes and refuses."""

from __future__ import annotations

import copy
import os
import stat

import numpy as np
import pytest
import timm
import torch
from torch import nn

from infsa_explain.attention.layers import LinearInfSA, PureInfSA
from infsa_explain.catalogue import BUNDLED, UNTRAINED, weights_file
from infsa_explain.models.checkpoints import read_checkpoint, save
from infsa_explain.models.infvit import InfViT
from infsa_explain.models.loading import load
from infsa_explain.models.untraining import untrained
from infsa_explain.vits.capturing import capture, dead_heads
from infsa_explain.vits.preprocessing import preprocess

HERE = [name for name in BUNDLED if os.path.isfile(weights_file(name))]
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


def small(**arguments):
    torch.manual_seed(0)
    return InfViT(**{**SMALL, "num_classes": 5, **arguments}).eval()


class TestRegistry:
    @pytest.mark.parametrize("name", [*BUNDLED, *UNTRAINED])
    def test_every_name_is_registered(self, name):
        assert timm.is_model(name)
        layer = {"linear": LinearInfSA, "pure": PureInfSA}.get(name.split("_")[1])
        model = timm.create_model(name, device="meta")
        for block in model.blocks:
            assert type(block.attn) is (layer or timm.layers.attention.Attention)

    def test_the_catalogue_is_whole(self):
        ours = (
            name
            for name in timm.list_models()
            if timm.model_entrypoint(name).__module__ == "infsa_explain.models.infvit"
        )
        assert sorted(ours) == sorted([*BUNDLED, *UNTRAINED])

    def test_published_size(self):
        """53.5M, counted by hand: width D = 1024, 4 layers, 64 heads, 1000 classes."""
        d = 1024
        attention = d * 3 * d + 3 * d + d * d + d + 64  # qkv, proj, gamma_logit
        block = attention + 2 * 2 * d + d * 4 * d + 4 * d + 4 * d * d + d
        embedding = 3 * 16 * 16 * d + d + d + 197 * d  # patches, class token, positions
        total = embedding + 4 * block + 2 * d + d * d + d + d * 1000 + 1000
        model = timm.create_model("infvit_linear_4l", device="meta")
        assert sum(p.numel() for p in model.parameters()) == total == 53_452_008

    @pytest.mark.parametrize(
        ("model", "twin"),
        [
            ("infvit_linear_4l", "vit_softmax_4l"),
            ("infvit_pure_24l", "vit_softmax_24l"),
            ("infvit_linear_digits", "vit_softmax_digits"),
            ("infvit_pure_photos", "vit_softmax_photos"),
        ],
    )
    def test_twins_differ_in_gamma_alone(self, model, twin):
        state, twins = (
            {
                key: tuple(value.shape)
                for key, value in timm.create_model(name, device="meta").state_dict().items()
            }
            for name in (model, twin)
        )
        extra = {key for key in state if key.endswith(".attn.gamma_logit")}
        depth = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
        assert len(extra) == depth
        assert {key: state[key] for key in state.keys() - extra} == twins

    def test_unknown_attention(self):
        with pytest.raises(ValueError, match="one of linear, pure, softmax, got 'cosine'"):
            InfViT(attention="cosine")


class TestStart:
    """A positive constant in query and key biases keeps every head alive."""

    @pytest.mark.parametrize("attention", ["linear", "pure"])
    @pytest.mark.parametrize(
        ("width", "heads", "img_size"), [(96, 8, 112), (384, 24, 112), (1024, 64, 64)]
    )
    def test_fresh_models_have_no_dead_heads(self, photographs, attention, width, heads, img_size):
        torch.manual_seed(0)
        model = InfViT(
            attention=attention,
            img_size=img_size,
            patch_size=8 if width == 96 else 16,
            embed_dim=width,
            depth=4,
            num_heads=heads,
            num_classes=0,
        ).eval()
        dead = dead_heads(capture(model, preprocess(model, photographs)))
        assert dead.shape == (4, 3, heads)
        assert not dead.any()

    def test_without_the_biases_heads_of_a_wide_linear_model_die(self, photographs):
        torch.manual_seed(0)
        model = InfViT(img_size=64, embed_dim=1024, depth=4, num_heads=64, num_classes=0).eval()
        for block in model.blocks:
            nn.init.zeros_(block.attn.qkv.bias)
        dead = dead_heads(capture(model, preprocess(model, photographs)))
        assert dead.double().mean() > 0.01


class TestForward:
    @pytest.mark.parametrize("attention", ["linear", "pure", "softmax"])
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"class_token": False, "global_pool": "avg"},
            {"reg_tokens": 3},
            {"global_pool": "map"},
            {"img_size": (16, 40)},
            {"dynamic_img_size": True},
            {"pre_logits": True, "class_token": False, "global_pool": "avg"},
            {"accumulate": True, "reg_tokens": 2},
            {"qk_norm": True, "scale_attn_norm": True},
        ],
        ids=lambda arguments: " ".join(arguments) or "defaults",
    )
    def test_an_image_does_not_depend_on_its_batch(self, attention, arguments):
        """And blocks run on prefix and patches: every way to build a ViT fits the attention."""
        model = small(attention=attention, **arguments)
        size = {"img_size": (16, 40), "dynamic_img_size": (48, 24)}.get(next(iter(arguments), ""))
        images = torch.randn(3, 3, *(size or (32, 32)))
        tokens = []
        model.blocks[1].register_forward_pre_hook(lambda m, args: tokens.append(args[0].shape[1]))
        logits = model(images)
        assert logits.shape == (3, 5)
        patches = images.shape[2] * images.shape[3] // 64
        assert tokens == [model.num_prefix_tokens + patches]
        torch.testing.assert_close(model(images[1:2])[0], logits[1], rtol=0, atol=1e-5)

    def test_the_softmax_twin_is_timms_vit(self):
        twin = small(attention="softmax")
        vit = timm.models.VisionTransformer(**SMALL, num_classes=5).eval()
        vit.load_state_dict(twin.state_dict())
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(twin(images), vit(images))

    def test_pre_logits(self):
        model = small(pre_logits=True)
        images = torch.randn(2, 3, 32, 32)
        layer = model.pre_logits[0]
        pooled = torch.tanh(layer(model.forward_features(images)[:, 0]))
        torch.testing.assert_close(model(images), model.head(pooled), rtol=0, atol=1e-6)
        features = model.forward_head(model.forward_features(images), pre_logits=True)
        torch.testing.assert_close(features, pooled, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("grad_checkpointing", [False, True])
    def test_accumulate(self, grad_checkpointing):
        """Σ_l γˡ x⁽ˡ⁾ over the outputs of the blocks, seen through hooks."""
        model = small(accumulate=True, depth=4, class_token=False, global_pool="avg")
        nn.init.constant_(model.accumulation_logit, -0.4)
        gamma = 1 / (1 + np.exp(0.4))
        outputs = []
        handles = [
            block.register_forward_hook(lambda m, args, out: outputs.append(out.detach()))
            for block in model.blocks
        ]
        images = torch.randn(2, 3, 32, 32)
        logits = model(images)
        for handle in handles:
            handle.remove()
        total = sum(gamma**layer * x for layer, x in enumerate(outputs, start=1))
        assert len(outputs) == 4
        truth = model.head(model.fc_norm(model.norm(total).mean(1)))
        torch.testing.assert_close(logits, truth, rtol=0, atol=1e-6)

        model.set_grad_checkpointing(grad_checkpointing)
        model.train()
        trained = model(images)
        torch.testing.assert_close(trained, truth, rtol=0, atol=1e-6)
        trained.sum().backward()
        assert model.accumulation_logit.grad != 0

    def test_accumulate_takes_no_mask(self):
        with pytest.raises(ValueError, match="accumulate=True takes no attention mask"):
            small(accumulate=True).forward_features(torch.zeros(1, 3, 32, 32), is_causal=True)


class TestLoadBundled:
    @pytest.mark.parametrize("name", HERE)
    def test_has_the_weights_of_the_file(self, name):
        model, (weights, metadata) = load(name), read_checkpoint(weights_file(name))
        assert not model.training
        state = model.state_dict()
        assert state.keys() == weights.keys()
        assert all(torch.equal(state[key], weights[key].float()) for key in state)
        assert metadata["architecture"] == name
        assert len(model.class_names) == model.num_classes == 10
        if name.endswith("digits"):
            assert model.class_names == list("0123456789")

    @pytest.mark.parametrize("name", HERE)
    def test_is_timms_pretrained_model(self, name):
        ours, timms = load(name), timm.create_model(name, pretrained=True)
        state = timms.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in ours.state_dict().items())
        path = load(weights_file(name))
        assert path.class_names == ours.class_names
        assert all(torch.equal(value, state[key]) for key, value in path.state_dict().items())

    def test_another_size_and_classifier(self):
        model = load("infvit_linear_digits", img_size=64, num_classes=3)
        assert model.patch_embed.grid_size == (8, 8)
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
        assert model.class_names is None

    def test_device_and_dtype(self):
        assert {p.dtype for p in load("infvit_linear_digits").parameters()} == {torch.float32}
        with pytest.raises(RuntimeError, match="nowhere"):
            load("infvit_linear_digits", device="nowhere")

    def test_a_missing_file_is_named(self, monkeypatch, tmp_path):
        monkeypatch.setattr(
            "infsa_explain.models.loading.weights_file", lambda name: tmp_path / "gone"
        )
        with pytest.raises(ValueError, match=r"no checkpoint at .*gone"):
            load("infvit_linear_digits")


class TestLoad:
    def test_a_module_is_the_same_module(self):
        model = small().train()
        assert load(model) is model
        assert not model.training
        assert model.class_names is None

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_saved_and_loaded_by_its_path(self, tmp_path, dtype):
        path, arguments = tmp_path / "model.safetensors", {**SMALL, "num_classes": 3}
        model = timm.create_model("infvit_pure_digits", **arguments)
        save(
            model,
            path,
            architecture="infvit_pure_digits",
            arguments=arguments,
            classes=["a", "b", "c"],
            dtype=dtype,
        )
        for given in (path, str(path)):
            loaded = load(given)
            assert loaded.class_names == ["a", "b", "c"]
            for key, value in model.state_dict().items():
                assert torch.equal(loaded.state_dict()[key], value.to(dtype).float())
        assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]

    def test_files_have_ordinary_permissions(self, tmp_path):
        path = tmp_path / "model.safetensors"
        save(timm.create_model("infvit_linear_digits", **SMALL), path)
        (tmp_path / "other").touch()
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(
            (tmp_path / "other").stat().st_mode
        )

    def test_a_checkpoint_for_a_name(self, tmp_path):
        model = timm.create_model("infvit_linear_digits", **SMALL)
        torch.save(model.state_dict(), tmp_path / "a.pth")
        loaded = load("infvit_linear_digits", checkpoint=tmp_path / "a.pth", **SMALL)
        assert all(
            torch.equal(loaded.state_dict()[key], value)
            for key, value in model.state_dict().items()
        )
        assert loaded.class_names is None

    @pytest.mark.parametrize("nest", ["state_dict", "model", "state_dict_ema"])
    def test_a_nested_torch_checkpoint_for_a_module(self, tmp_path, nest):
        model, other = small(), copy.deepcopy(small())
        nn.init.ones_(model.head.bias)
        torch.save({nest: model.state_dict(), "epoch": 3}, tmp_path / "a.pt")
        assert load(other, checkpoint=tmp_path / "a.pt") is other
        assert torch.equal(other.head.bias, torch.ones(5))

    @pytest.mark.shared
    def test_real_weights_of_timm(self, shared):
        loaded = load(
            "vit_small_patch14_dinov2",
            checkpoint=shared / "weights" / "vit_small_patch14_dinov2.safetensors",
            num_classes=0,
            dynamic_img_size=True,
        )
        weights, _ = read_checkpoint(shared / "weights" / "vit_small_patch14_dinov2.safetensors")
        assert all(
            torch.equal(loaded.state_dict()[key], value.float()) for key, value in weights.items()
        )

    def test_an_unknown_name_suggests_the_nearest(self):
        with pytest.raises(ValueError, match="unknown model 'infvit_liner_digits'") as error:
            load("infvit_liner_digits")
        near = str(error.value).partition("did you mean ")[2].partition("?")[0].split(", ")
        assert near[0] == "infvit_linear_digits"
        assert len(set(near)) == len(near) == 3

    @pytest.mark.parametrize(
        "name", ["vit_tiny_patch16_224", "hf-hub:timm/vit_tiny_patch16_224", "infvit_linear_4l"]
    )
    def test_unavailable_weights_are_one_line(self, name, monkeypatch, tmp_path):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(ValueError, match=f"cannot load '{name}' with pretrained") as error:
            load(name)
        assert "\n" not in str(error.value)

    def test_unfit_keys_and_shapes_are_named(self, tmp_path):
        state = small().state_dict()
        del state["cls_token"]
        state["nose"] = torch.zeros(1)
        state["head.bias"] = torch.zeros(7)
        torch.save(state, tmp_path / "a.pt")
        model = small()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match="does not fit InfViT") as error:
            load(model, checkpoint=tmp_path / "a.pt")
        for part in (
            "a.pt",
            "missing: cls_token",
            "unexpected: nose",
            "shapes: head.bias is (7,), expected (5,)",
        ):
            assert part in str(error.value)
        assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)

    def test_a_path_that_names_no_model(self, tmp_path):
        torch.save(small().state_dict(), tmp_path / "a.pt")
        with pytest.raises(ValueError, match=r"a\.pt does not say which model it is for"):
            load(tmp_path / "a.pt")


class TestUntrained:
    @pytest.mark.parametrize("name", HERE)
    def test_no_trained_parameter_is_left(self, name):
        model = load(name)
        fresh = untrained(model)
        kept = [n for n, p in model.named_parameters() if torch.equal(p, fresh.get_parameter(n))]
        assert kept == []

    def test_nor_the_filters_of_the_patches_and_the_norms(self):
        vit = timm.create_model("vit_tiny_patch16_224", depth=1)
        for p in vit.parameters():
            torch.nn.init.constant_(p, 0.123)
        left = [n for n, p in untrained(vit).named_parameters() if (p == 0.123).any()]
        assert left == []

    def test_a_hugging_face_model_is_built_anew(self):
        transformers = pytest.importorskip("transformers")
        config = transformers.ViTConfig(
            hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=48
        )
        model = transformers.ViTForImageClassification(config).eval()
        fresh, again = untrained(model, seed=1), untrained(model, seed=1)
        assert not fresh.training
        name = max(dict(model.named_parameters()), key=lambda n: model.get_parameter(n).numel())
        assert not torch.equal(model.get_parameter(name), fresh.get_parameter(name))
        for a, b in zip(fresh.parameters(), again.parameters(), strict=True):
            assert torch.equal(a, b)

    def test_a_model_that_does_not_say_how_is_refused(self):
        fault = (
            r"Linear cannot be built .* has no init_weights\(\); register a family with a method"
        )
        with pytest.raises(ValueError, match=fault):
            untrained(nn.Linear(2, 2))
