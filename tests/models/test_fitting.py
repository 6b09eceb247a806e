"""Checkpoints as training scripts leave them: what loads, which weights are taken, what is said."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from torch import nn

from infsa_explain.models.checkpoints import is_checkpoint, read_checkpoint
from infsa_explain.models.fitting import own_weights
from infsa_explain.models.loading import load

NAME = "vit_tiny_patch16_224"
TINY = {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8, "img_size": 32}
PREFIXES = ["module.", "model.", "_orig_mod.", "backbone.", "teacher.", "student.", "ema_model."]
PREFIXES += ["encoder.", "module._orig_mod.", "_orig_mod.module.", "model.module.backbone.", "vit."]
FOLDERS = ["model_state_dict", "state_dict", "model", "ema", "state_dict_ema", "teacher", "net"]
ENDINGS = [".ckpt", ".pth", ".pth.tar", ".pt", ".bin"]


def vit(value=0.0, **arguments):
    """A model whose weights all have one value."""
    model = timm.create_model(NAME, **TINY | {"num_classes": 5} | arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model.eval()


def state(value, prefix="", **arguments):
    return {prefix + key: tensor for key, tensor in vit(value, **arguments).state_dict().items()}


def values(model):
    return {value for p in model.parameters() for value in p.detach().unique().tolist()}


class TestNames:
    @pytest.mark.parametrize("folder", ["", "state_dict"])
    @pytest.mark.parametrize("prefix", ["", *PREFIXES])
    def test_prefixes(self, tmp_path, prefix, folder):
        """Into a module and by name, without a word."""
        weights = state(1.0, prefix)
        torch.save({folder: weights, "epoch": 3} if folder else weights, tmp_path / "a.pth")
        assert values(load(vit(), checkpoint=tmp_path / "a.pth")) == {1.0}
        named = load(NAME, checkpoint=tmp_path / "a.pth", **TINY)
        assert (values(named), named.num_classes) == ({1.0}, 5)

    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("folder", FOLDERS)
    def test_folders_and_endings(self, tmp_path, folder, ending):
        optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1.0}]}
        content = {"epoch": 1, "optimizer": optimizer, folder: state(1.0, "module."), "rng": None}
        torch.save(content, tmp_path / f"a{ending}")
        assert values(load(vit(), checkpoint=tmp_path / f"a{ending}")) == {1.0}

    def test_safetensors(self, tmp_path):
        safetensors.torch.save_file(state(1.0, "module.backbone."), tmp_path / "a.safetensors")
        assert values(load(vit(), checkpoint=tmp_path / "a.safetensors")) == {1.0}

    @pytest.mark.parametrize("prefix", ["", "module."])
    @pytest.mark.parametrize(
        "wrap",
        [
            nn.DataParallel,
            lambda model: nn.Sequential(nn.Identity(), model),
            lambda model: nn.Sequential(nn.Sequential(model)),
            torch.compile,
        ],
        ids=["data parallel", "sequential", "nested", "compiled"],
    )
    def test_a_model_in_a_wrapper(self, tmp_path, wrap, prefix):
        torch.save(state(1.0, prefix), tmp_path / "a.pt")
        model = vit()
        load(wrap(model), checkpoint=tmp_path / "a.pt")
        assert values(model) == {1.0}

    def test_other_weights_under_the_prefix_are_refused(self, tmp_path):
        weights = state(1.0, "model.") | {"model.nose": torch.zeros(1)}
        torch.save({"state_dict": weights}, tmp_path / "a.ckpt")
        model = vit()
        with pytest.raises(ValueError, match=r"a\.ckpt does not fit Visi.*; unexpected: nose$"):
            load(model, checkpoint=tmp_path / "a.ckpt")
        assert values(model) == {0.0}

    def test_other_weights_beside_the_prefix_are_said(self, tmp_path):
        weights = state(1.0, "model.") | {"loss.weight": torch.zeros(1), "loss.bias": torch.ones(1)}
        torch.save({"state_dict": weights, "callbacks": {}, "loops": {}}, tmp_path / "a.ckpt")
        message = (
            r"a\.ckpt: the weights under state_dict/model are taken; left out: 2 beside them, such "
            r"as state_dict/loss\.weight$"
        )
        with pytest.warns(UserWarning, match=message):
            assert values(load(vit(), checkpoint=tmp_path / "a.ckpt")) == {1.0}

    def test_missing_weights_under_a_prefix_are_named_as_the_models(self, tmp_path):
        weights = state(1.0, "module.")
        del weights["module.norm.bias"]
        torch.save({"model": weights}, tmp_path / "a.pt")
        with pytest.raises(ValueError, match=r"does not fit VisionTransformer; missing: norm\.bia"):
            load(vit(), checkpoint=tmp_path / "a.pt")

    def test_weights_of_another_model(self, tmp_path):
        content = {"state_dict": timm.create_model("resnet18").state_dict(), "epoch": 1}
        torch.save(content, tmp_path / "a.pt")
        for model, arguments in ((vit(), {}), (NAME, TINY)):
            with pytest.raises(ValueError) as caught:
                load(model, checkpoint=tmp_path / "a.pt", **arguments)
            message = str(caught.value)
            assert "missing: blocks.0.attn.proj.bias, blocks.0.attn.proj.weight" in message
            assert "unexpected: bn1.bias, bn1.num_batches_tracked" in message
            assert message.endswith("the file holds tensors in state_dict (122)")
            assert "\n" not in message

    def test_hugging_faces_own_names_on_disk(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        model = transformers.ViTModel(
            transformers.ViTConfig(
                hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48
            )
        )
        torch.save({f"other.{k}": v for k, v in model.state_dict().items()}, tmp_path / "a.bin")
        load(model, checkpoint=tmp_path / "a.bin")
        torch.save({"encoder.layer.0.output.dense.bias": torch.zeros(24)}, tmp_path / "a.bin")
        with pytest.raises(ValueError, match="from_pretrained of its class knows the names"):
            load(model, checkpoint=tmp_path / "a.bin")


class TestSeveralSets:
    """The averaged weights are taken, and a warning says so."""

    @pytest.mark.parametrize(
        ("content", "taken", "other"),
        [
            ({"model": state(1.0), "ema": state(2.0)}, "ema", "model"),
            (
                {"state_dict": state(1.0), "state_dict_ema": state(2.0)},
                "state_dict_ema",
                "state_dict",
            ),
            ({"teacher": state(2.0), "student": state(1.0)}, "teacher", "student"),
            (state(1.0, "student.") | state(2.0, "teacher."), "teacher", "student"),
            (
                {"state_dict": state(1.0, "model.") | state(2.0, "ema_model.")},
                "state_dict/ema_model",
                "state_dict/model",
            ),
            (
                {"model": state(1.0), "extra": {"ema": {"decay": 0.9, "module": state(2.0)}}},
                "extra/ema/module",
                "model",
            ),
        ],
        ids=["ema", "timm", "nested dino", "dino", "lightning", "deep"],
    )
    def test_averaged_first(self, tmp_path, content, taken, other):
        torch.save(content, tmp_path / "a.pt")
        message = rf"a\.pt: the weights under {taken} are taken, .* averaged, before .* {other}$"
        with pytest.warns(UserWarning, match=message):
            assert values(load(vit(), checkpoint=tmp_path / "a.pt")) == {2.0}

    def test_torchvisions_average(self, tmp_path):
        """``AveragedModel`` counts what it averaged."""
        average = torch.optim.swa_utils.AveragedModel(vit(2.0))
        content = {"model": state(1.0), "model_ema": average.state_dict()}
        torch.save(content, tmp_path / "a.pt")
        message = (
            "under model_ema/module are .* before those under model; left out: 1 .*/n_averaged$"
        )
        with pytest.warns(UserWarning, match=message):
            assert values(load(vit(), checkpoint=tmp_path / "a.pt")) == {2.0}

    def test_an_average_that_is_not_there(self, tmp_path):
        torch.save({"state_dict": state(1.0), "state_dict_ema": None}, tmp_path / "a.pt")
        assert values(load(vit(), checkpoint=tmp_path / "a.pt")) == {1.0}

    @pytest.mark.parametrize("names", [("first", "second"), ("ema", "teacher")])
    def test_a_choice_that_is_unclear(self, tmp_path, names):
        torch.save({name: state(1.0) for name in names}, tmp_path / "a.pt")
        message = rf"holds several sets of weights for Vis.*, under {', '.join(names)}; save the"
        with pytest.raises(ValueError, match=message):
            load(vit(), checkpoint=tmp_path / "a.pt")

    def test_dino_without_a_classifier_by_name(self, tmp_path):
        """As its repository has it: the teacher is the mean, and has a head of its own."""
        head = {"head.mlp.0.weight": torch.zeros(2, 2)}
        student = state(1.0, "module.backbone.", num_classes=0) | {
            f"module.{key}": value for key, value in head.items()
        }
        content = {
            "student": student,
            "teacher": state(2.0, "backbone.", num_classes=0) | head,
            "args": argparse.Namespace(arch="vit_tiny", patch_size=8),
            "epoch": 3,
        }
        torch.save(content, tmp_path / "a.pth")
        message = r"under teacher/backbone are taken.*such as teacher/head\.mlp\.0\.weight$"
        with pytest.warns(UserWarning, match=message):
            model = load(NAME, checkpoint=tmp_path / "a.pth", **TINY)
        assert (values(model), model.num_classes) == ({2.0}, 0)

    def test_a_layer_that_many_layers_look_like(self):
        message = r"a holds several sets of weights for Linear, under patch_embed\.proj, blocks.* …"
        with pytest.raises(ValueError, match=message):
            own_weights(nn.Linear(2, 2), state(1.0), "a")


class TestClasses:
    """A name is built with the checkpoint's classes; a module must have as many."""

    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_by_name(self, tmp_path, prefix):
        torch.save({"model": state(1.0, prefix, num_classes=7)}, tmp_path / "a.pt")
        model = load(NAME, checkpoint=tmp_path / "a.pt", **TINY)
        assert (model.num_classes, values(model)) == (7, {1.0})
        other = load(NAME, checkpoint=tmp_path / "a.pt", num_classes=3, **TINY)
        assert other.head.weight.shape == (3, 24)
        assert other.norm.weight.tolist() == [1.0] * 24

    def test_a_distilled_model_has_two_classifiers(self, tmp_path):
        name = "deit_tiny_distilled_patch16_224"
        model = timm.create_model(name, **TINY, num_classes=7)
        torch.save(model.state_dict(), tmp_path / "a.pt")
        loaded = load(name, checkpoint=tmp_path / "a.pt", **TINY)
        assert torch.equal(loaded.head_dist.weight, model.head_dist.weight)

    def test_a_module(self, tmp_path):
        torch.save(state(1.0, num_classes=7), tmp_path / "a.pt")
        message = r"shapes: head.bias is \(7,\), expected \(5,\).*; its head has 7 outputs, the mod"
        with pytest.raises(ValueError, match=message + "el's 5: build the model with 7 classes"):
            load(vit(), checkpoint=tmp_path / "a.pt")


class TestReading:
    def test_endings(self):
        for ending in (*ENDINGS, ".safetensors", ".safetensors.index.json", ".PTH"):
            assert is_checkpoint(f"folder.x/a{ending}") and is_checkpoint(Path(f"a{ending}"))
        for name in (NAME, f"{NAME}.augreg_in21k", "hf-hub:timm/x", "a.json", "a.tar"):
            assert not is_checkpoint(name)

    @pytest.mark.parametrize("ending", [".ckpt", ".pth.tar", ".index.json"])
    def test_a_path_alone_is_a_path(self, tmp_path, ending):
        with pytest.raises(ValueError, match=r"^no checkpoint at .*a\."):
            load(tmp_path / f"a{ending}")

    def test_a_file_that_notes_its_model(self, tmp_path):
        content = {"arch": NAME, "state_dict": state(1.0)}
        torch.save(content, tmp_path / "a.pth.tar")
        message = rf"does not say which model it is for \(it notes '{NAME}'\); name one"
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "a.pth.tar")

    def test_a_folder(self, tmp_path):
        for call in (lambda: load(tmp_path), lambda: load(NAME, checkpoint=tmp_path)):
            with pytest.raises(ValueError, match="is a folder; name the checkpoint file in it"):
                call()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ({"epoch": 1, "config": {"a": 1}}, "but a mapping with the keys epoch, config$"),
            ({}, "but an empty mapping$"),
            ([1], "but a list$"),
            (torch.zeros(1), "but a Tensor$"),
        ],
    )
    def test_no_weights(self, tmp_path, content, words):
        torch.save(content, tmp_path / "a.pt")
        with pytest.raises(ValueError, match=r"a\.pt holds no state dict .*, " + words):
            read_checkpoint(tmp_path / "a.pt")

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
            ({"model": state(1.0), "best": np.float64(1)}, r"numpy\S*\.multiarray\.scalar"),
            ({"model": state(1.0), "path": Path("x")}, r"pathlib\.PosixPath"),
        ],
        ids=["module", "numpy", "path"],
    )
    def test_objects_are_named_and_not_made(self, tmp_path, content, named):
        torch.save(content, tmp_path / "a.pt")
        message = rf"cannot read .*a\.pt .*: beside tensors it holds Python objects \({named}.*wei"
        with pytest.raises(ValueError, match=message + "ghts_only=False"):
            read_checkpoint(tmp_path / "a.pt")

    def test_a_namespace_is_plain_data(self, tmp_path):
        content = {"model": state(1.0), "args": argparse.Namespace(img_size=96, model=NAME)}
        torch.save(content, tmp_path / "a.pt")
        weights, metadata = read_checkpoint(tmp_path / "a.pt")
        assert weights.keys() == state(1.0, "model/").keys()
        assert (json.loads(metadata["img_size"]), metadata["arch"]) == ([96, 96], NAME)

    def test_a_mapping_that_holds_itself(self, tmp_path):
        content = {"model": state(1.0)}
        content["again"] = content
        torch.save(content, tmp_path / "a.pt")
        assert values(load(vit(), checkpoint=tmp_path / "a.pt")) == {1.0}

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("a.pt", b"version https://git-lfs.github.com/spec/v1\noid", "`git lfs pull`$"),
            ("a.safetensors", b"version https://git-lfs.github.com/spec/v1", "`git lfs pull`$"),
            ("a.h5", b"\x89HDF\r\n\x1a\n", r"end with \.safetensors, \.pt, .*; convert it"),
            ("a.npz", b"PK\x03\x04" + bytes(99), r"end with \.safetensors, \.pt, .*; convert it"),
        ],
    )
    def test_other_files(self, tmp_path, name, content, words):
        (tmp_path / name).write_bytes(content)
        path = tmp_path / name
        for call in (lambda: load(path), lambda: load(vit(), checkpoint=path)):
            with pytest.raises(ValueError, match=rf"^cannot read .* of weights: .*{words}"):
                call()

    @pytest.mark.filterwarnings("ignore:.*torch.jit")
    def test_torchscript(self, tmp_path):
        torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "a.pt")
        with pytest.raises(ValueError, match=r"a TorchScript program; save the state_dict\(\) of"):
            read_checkpoint(tmp_path / "a.pt")


class TestSeveralFiles:
    @pytest.fixture
    def index(self, tmp_path):
        weights, names = state(1.0), {}
        for part in (1, 2):
            name = f"model-{part:05}-of-00002.safetensors"
            own = {key: v for i, (key, v) in enumerate(weights.items()) if i % 2 == part - 1}
            safetensors.torch.save_file(own, tmp_path / name)
            names |= dict.fromkeys(own, name)
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": names}))
        return path

    def test_all_of_them_are_read(self, index):
        assert values(load(NAME, checkpoint=index, **TINY)) == {1.0}

    def test_one_of_them_is_not_enough(self, index):
        message = r"is one of several parts of .*; name model\.safetensors\.index\.json beside it"
        with pytest.raises(ValueError, match=message):
            load(vit(), checkpoint=index.with_name("model-00001-of-00002.safetensors"))

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ({"weight_map": {"a": "../a.pt"}}, r"'\.\./a\.pt' is no file beside it"),
            ({"weight_map": {"a": "/etc/passwd"}}, r"'/etc/passwd' is no file beside it"),
            ({"weight_map": {"a": "b.bin"}}, r"lists b\.bin, which is not beside it; copy all"),
            ({"weight_map": {}}, r"lists no files of a checkpoint \(in weight_map\)"),
            ([], r"lists no files of a checkpoint"),
        ],
    )
    def test_refused(self, tmp_path, content, words):
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words):
            load(vit(), checkpoint=path)
