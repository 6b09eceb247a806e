"""Numbers that make no sense: one line that names the argument, and nothing written."""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch
from infsa_metrics import bootstrap_mean, box_mask, paired_test, pointing_game, sensitivity_max
from infsa_metrics.fills import black_fill
from PIL import Image

from infsa_explain.__main__ import main
from infsa_explain.bench import Setting, plan
from infsa_explain.data import PhotoDigits, limited
from infsa_explain.evaluate import Alignment, Boxes, Sanity
from infsa_explain.models.loading import load
from infsa_explain.ranges import Range, count
from infsa_explain.training.loop import train
from infsa_explain.training.recipes import RANGES, Recipe, recipe_for

NAN, INF, HUGE = math.nan, math.inf, 10**23
WHOLE = "must be a whole number from"


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Run a command that is refused; its only line, and nothing written."""

    def run(*arguments):
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["infsa-explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert (stop.value.code, captured.out) == (2, "")
        assert list(folder.rglob("*")) == []
        (line,) = captured.err.splitlines()
        return line.removeprefix("error: ")

    return run


class TestRange:
    @pytest.mark.parametrize("value", [0, 0.5, 1, True, "0.5", None, NAN, -1, 1.5, INF, -INF])
    def test_ends_are_in_or_out(self, value):
        for above in (False, True):
            for below in (False, True):
                number = type(value) in (int, float)
                inside = number and (0 < value < 1 or (value, above) == (0, False))
                inside = inside or (number and (value, below) == (1, False))
                allowed = Range(0, 1, open_low=above, open_high=below)
                if inside:
                    allowed.require("x", value)
                else:
                    left, right = "(" if above else "[", ")" if below else "]"
                    with pytest.raises(ValueError) as caught:
                        allowed.require("x", value)
                    words = f"x must be a number in {left}0, 1{right}, got {value!r}"
                    assert str(caught.value) == words

    def test_whole_numbers(self):
        count(0, 3).require("n", 3)
        for value in (4, -1, 1.0, NAN, True, "2"):
            with pytest.raises(ValueError, match=rf"^n {WHOLE} 0 to 3, got {value!r}$"):
                count(0, 3).require("n", value)


class TestTrain:
    @pytest.mark.parametrize(
        ("option", "value", "words"),
        [
            ("epochs", 0, f"epochs {WHOLE} 1 to 1000000, got 0"),
            ("epochs", -1, f"epochs {WHOLE} 1 to 1000000, got -1"),
            ("epochs", HUGE, f"epochs {WHOLE} 1 to 1000000, got {HUGE}"),
            ("batch-size", 0, f"batch_size {WHOLE} 1 to 1000000, got 0"),
            ("batch-size", HUGE, f"batch_size {WHOLE} 1 to 1000000, got {HUGE}"),
            ("lr", -1, "lr must be a number in [0, 10], got -1.0"),
            ("lr", "nan", "lr must be a number in [0, 10], got nan"),
            ("lr", "1e400", "lr must be a number in [0, 10], got inf"),
            ("weight-decay", "-inf", "weight_decay must be a number in [0, 100], got -inf"),
            ("warmup-epochs", -1, f"warmup_epochs {WHOLE} 0 to 1000000, got -1"),
            ("warmup-epochs", 37, "warmup_epochs must be at most epochs (36), got 37"),
            ("layer-decay", 0, "layer_decay must be a number in (0, 1], got 0.0"),
            ("layer-decay", "nan", "layer_decay must be a number in (0, 1], got nan"),
            ("drop-path", 1, "drop_path must be a number in [0, 1), got 1.0"),
            ("img-size", 0, f"img_size {WHOLE} 1 to 1000000, got 0"),
            ("img-size", 4, "img_size must be at least a patch, (8, 8), got 4"),
            ("seed", 2**49, f"seed {WHOLE} 0 to 281474976710656, got 562949953421312"),
            ("out", "", "--out is empty; give it a value, or leave it out"),
        ],
    )
    def test_options(self, refused, option, value, words):
        assert refused("train", f"--{option}={value}") == words

    def test_every_number_of_a_recipe_has_a_range(self):
        numbers = {
            name: value
            for name, value in vars(Recipe("x")).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        assert numbers.keys() == RANGES.keys()
        for name in numbers:
            for value in (-1, NAN, None, "1"):
                with pytest.raises(ValueError, match=f"^{name} must be a"):
                    Recipe("x", **{name: value})

    @pytest.mark.parametrize(("epochs", "warmup"), [(1, 1), (2, 2), (3, 3), (9, 3)])
    def test_a_short_run_warms_up_for_all_of_it_at_most(self, epochs, warmup):
        assert recipe_for("x", "folder", epochs=epochs).warmup_epochs == warmup

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--model", "nosuch"), "unknown model 'nosuch'"),
            (("--model", "resnet18"), "model must be a timm VisionTransformer, got resnet18"),
            (("--init", "none.pt"), "no checkpoint at none.pt"),
            (
                ("--convert", "cubic"),
                "--convert must be 'linear', 'pure' or 'softmax', got 'cubic'",
            ),
            (("--convert", "pure", "--convert-layers", "9"), "layer 9 is out of range"),
        ],
    )
    def test_what_fails_before_the_first_step_leaves_nothing(self, refused, options, words):
        """A recipe left behind would have the next command refused."""
        assert refused("train", *options).startswith(words)

    def test_images_without_labels_leave_nothing(self, refused, tmp_path):
        for name in "ab":
            (tmp_path / "images").mkdir(exist_ok=True)
            Image.new("RGB", (32, 32)).save(tmp_path / "images" / f"{name}.png")
        line = refused("train", "--model", "infvit_pure_photos", "--data", tmp_path / "images")
        assert "label" in line

    def test_out_that_is_a_file(self, refused, tmp_path):
        (tmp_path / "file").touch()
        line = refused("train", "--out", tmp_path / "file")
        assert line == f"{tmp_path / 'file'} is a file; --out needs a folder"

    @pytest.mark.parametrize("content", [{"model": {}}, [], {"weights": torch.zeros(1)}])
    def test_a_state_that_is_none(self, tmp_path, content):
        recipe = Recipe("infvit_linear_digits", epoch_size=8, model_args={"depth": 1})
        (tmp_path / "recipe.json").write_text(json.dumps(vars(recipe)))
        torch.save(content, tmp_path / "last.pt")
        with pytest.raises(ValueError, match=r"last\.pt is not a training checkpoint; remove it"):
            train(recipe, tmp_path, resume=True)


class TestBench:
    @pytest.mark.parametrize(
        ("option", "value", "words"),
        [
            ("repeats", 0, "repeats must be a whole number from 1 to 1000000, got 0"),
            ("repeats", HUGE, "repeats must be a whole number from 1 to 1000000, got 1000"),
            ("budget", "nan", "budget must be a number in (0, 1e+09], got nan"),
            ("budget", "inf", "budget must be a number in (0, 1e+09], got inf"),
            ("depth", HUGE, "depth must be a whole number from 1 to 10000, got 1000"),
            (
                "batch-size",
                HUGE,
                "batch_size must be a whole number from 1 to 1000000000000, got 10",
            ),
            ("width", 640_000_000, "width must be a whole number from 1 to 1000000, got 640000000"),
            ("sizes", 1_600_000, "size must be a whole number from 1 to 1000000, got 1600000"),
            ("sizes", "", "--sizes is empty; give it a value, or leave it out"),
            ("mechanisms", "magic", "mechanism must be one of softmax-fused"),
        ],
    )
    def test_options(self, refused, option, value, words):
        assert refused("bench", "--out", "run", f"--{option}={value}").startswith(words)

    def test_the_plan_is_what_is_measured(self):
        like = Setting("linear", 64, depth=1, width=32, heads=4)
        cells = plan([64, 32, 64], ["pure"], like)
        assert [(cell.mechanism, cell.size) for cell in cells] == [
            ("softmax-fused", 32),
            ("pure", 32),
            ("softmax-fused", 64),
            ("pure", 64),
        ]


class TestMeasures:
    @pytest.mark.parametrize(
        ("measure", "words"),
        [
            (Sanity(draws=HUGE), f"draws {WHOLE} 1 to 1000000, got {HUGE}"),
            (Sanity(draws=1.5), f"draws {WHOLE} 1 to 1000000, got 1.5"),
            (Sanity(noise=1e23), r"noise must be at most 10 times the range, got 1e\+23"),
            (Boxes(tolerance=NAN), r"tolerance must be a number in \[0, 100\], got nan"),
            (Boxes(tolerance=-1e-9), r"tolerance must be a number in \[0, 100\], got -1e-09"),
            (Alignment(steps=(2, HUGE)), r"steps must each be at most 1000000, got \[2, 1"),
        ],
    )
    def test_options(self, measure, words):
        with pytest.raises(ValueError, match=f"^{words}"):
            measure.check(load("infvit_linear_digits"))

    @pytest.mark.parametrize("option", ["steps", "boxes"])
    def test_options_of_a_measure_that_is_not_asked_for(self, refused, option):
        line = refused("evaluate", "--metrics", "focus", f"--{option}", "nosuch")
        assert line.startswith(f"--{option} must be")

    @pytest.mark.parametrize(
        "arguments",
        [("morf", "--data", ""), ("map", "--method= "), ("map", "--model", " "), ("report", "")],
    )
    def test_empty_values(self, refused, arguments):
        name = arguments[1].partition("=")[0] or "an argument"
        assert refused(*arguments) == f"{name} is empty; give it a value, or leave it out"

    @pytest.mark.parametrize("command", ["morf", "accuracy", "gallery"])
    def test_more_images_than_can_be_counted(self, refused, command):
        assert f"{WHOLE} 1 to 1000000000, got {HUGE}" in refused(command, "--limit", HUGE)

    @pytest.mark.parametrize("seed", [-1, 2**63, 0.5])
    def test_seeds(self, seed):
        for draw in (
            lambda: PhotoDigits("val", 1, seed=seed),
            lambda: limited(PhotoDigits("val", 2), 1, seed=seed),
        ):
            with pytest.raises(ValueError, match=f"^seed {WHOLE} 0 to 9223372036854775807, got"):
                draw()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"img_size": 0}, f"img_size {WHOLE} 1 to 1000000, got 0"),
            ({"img_size": (64, NAN)}, f"img_size {WHOLE} 1 to 1000000, got nan"),
            ({"img_size": 4}, "cannot load 'infvit_linear_digits' .* and img_size=4: "),
            ({"img_size": 4, "pretrained": False}, "img_size must be at least a patch"),
            ({"num_classes": -1}, f"num_classes {WHOLE} 0 to 1000000, got -1"),
        ],
    )
    def test_models(self, arguments, words):
        with pytest.raises(ValueError, match=f"^{words}"):
            load("infvit_linear_digits", **arguments)


class TestMetrics:
    @pytest.mark.parametrize("resamples", [INF, 1e30, 0.5, -1])
    def test_resamples(self, resamples):
        for call in (bootstrap_mean, lambda v, **k: paired_test(v, [1.0, 0.0], **k)):
            with pytest.raises(ValueError, match="^resamples must be a whole number, at least 0"):
                call([0.0, 1.0], resamples=resamples)

    def test_radius(self):
        with pytest.raises(ValueError, match="^radius must be a number above 0, got inf"):
            sensitivity_max(
                lambda images, targets: images.mean(1),
                torch.zeros(1, 3, 4, 4),
                torch.zeros(1, dtype=torch.long),
                radius=INF,
            )

    @pytest.mark.parametrize("std", [NAN, INF, 0.0])
    def test_colours(self, std):
        with pytest.raises(ValueError, match="^mean, std must be one mean and one std > 0"):
            black_fill([0.5] * 3, [1.0, 1.0, std], 0)

    @pytest.mark.parametrize("height", [0, NAN, INF, 2.5])
    def test_box_mask(self, height):
        with pytest.raises(ValueError, match="^height, width must be at least 1"):
            box_mask(torch.zeros(0, 4), height, 4)

    def test_a_tolerance_beyond_the_image_is_all_of_it(self):
        scores = torch.zeros(1, 3, 5)
        scores[0, 0, 0] = 1
        mask = torch.zeros(1, 3, 5, dtype=torch.bool)
        mask[0, 2, 4] = True
        corner = math.hypot(2, 4)
        assert pointing_game(scores, mask, tolerance=corner - 1e-6).item() == 0
        assert pointing_game(scores, mask, tolerance=corner).item() == 1
        assert pointing_game(scores, mask, tolerance=1e30).item() == 1
