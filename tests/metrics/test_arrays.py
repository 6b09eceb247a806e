"""Every measure takes arrays where it takes tensors, and says the same."""

from __future__ import annotations

import infsa_metrics as m
import numpy as np
import pytest
import torch
from infsa_metrics.arrays import to_tensor

GENERATOR = torch.Generator().manual_seed(0)
MAPS = torch.rand(2, 6, 6, generator=GENERATOR)
OTHERS = torch.rand(2, 6, 6, generator=GENERATOR)
MASK = torch.zeros(2, 6, 6, dtype=torch.bool)
MASK[:, 1:4, 2:5] = True
IMAGES = torch.rand(2, 3, 12, 12, generator=GENERATOR)
TARGETS = torch.tensor([0, 1])
BOXES = torch.tensor([[0.0, 1.0, 4.0, 5.0]])


def share_left(images, removed):
    left = (~removed).double().mean((1, 2))
    return torch.stack([left, 1 - left], 1)


MEASURES = {
    **{
        name: lambda f, name=name: getattr(m, name)(f(MAPS), f(MASK))
        for name in (
            "average_precision",
            "roc_auc",
            "pointing_game",
            "mass_accuracy",
            "rank_accuracy",
            "iou_at_mean",
            "iou_at_best",
        )
    },
    "precision_at_recall": lambda f: m.precision_at_recall(f(MAPS), f(MASK), recalls=[0.5]),
    "prevalence": lambda f: m.prevalence(f(MASK)),
    "box_mask": lambda f: m.box_mask(f(BOXES), 6, 6),
    **{
        name: lambda f, name=name: getattr(m, name)(f(MAPS), f(OTHERS))
        for name in ("cosine", "centred_cosine", "spearman", "rank_correlation", "ssim")
    },
    "agreement": lambda f: m.agreement({"a": f(MAPS), "b": f(OTHERS)}),
    "stability": lambda f: m.stability(lambda images: f(images.mean(1)), f(IMAGES)),
    **{
        name: lambda f, name=name: getattr(m, name)(f(MAPS))
        for name in ("entropy", "effective_patches", "gini", "token_similarity", "rank_patches")
    },
    "deletion_curve": lambda f: (
        m.deletion_curve(
            lambda images, removed: f(share_left(images, removed)), f(IMAGES), f(TARGETS), f(MAPS)
        ).probabilities
    ),
    "pixel_fill": lambda f: m.pixel_fill(lambda images: images.mean((2, 3)))(f(IMAGES), f(MASK)),
    "infidelity": lambda f: m.infidelity(
        lambda images, removed: f(share_left(images, removed)), f(IMAGES), f(TARGETS), f(MAPS)
    ),
    "sensitivity_max": lambda f: m.sensitivity_max(
        lambda images, targets: f(images.mean(1)), f(IMAGES), f(TARGETS)
    ),
}


def test_all_measures_are_here():
    """All but statistics, and what takes no maps."""
    functions = {name for name in m.__all__ if name.islower()}
    others = {"register_fill", "srg", "bootstrap_mean", "paired_test", "paired_tests", "holm"}
    others |= {"filled_once", "extreme_orders", "naopc"}
    of_outputs = {"output_tensor", "class_logits", "class_probabilities"}
    assert functions - others - of_outputs == set(MEASURES)


@pytest.mark.parametrize("name", MEASURES)
def test_an_array_is_as_good_as_a_tensor(name):
    expected = MEASURES[name](lambda tensor: tensor)
    assert expected.isfinite().all()

    def frozen(tensor):
        array = tensor.numpy().copy()
        array.flags.writeable = False
        return array

    def reversed_twice(tensor):  # with negative strides
        return tensor.flip(0).numpy()[::-1]

    for form in (torch.Tensor.numpy, frozen, reversed_twice):
        found = MEASURES[name](form)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, expected)


def test_lists_of_numbers_are_arrays_too():
    scores, mask = [[[0.9, 0.8], [0.7, 0.1]]], [[[True, False], [True, False]]]
    assert m.average_precision(scores, mask).tolist() == pytest.approx([5 / 6], abs=1e-12)
    assert m.cosine([1.0, 0.0], [3.0, 4.0]).item() == pytest.approx(0.6, abs=1e-15)


def test_errors_speak_of_one_type_by_one_name():
    """A mask of NumPy's bool is bool; of another type it is told which."""
    with pytest.raises(ValueError, match="^mask must be bool, got torch.uint8$"):
        m.average_precision(MAPS.numpy(), MASK.numpy().astype(np.uint8))
    for value in (["a"], object(), None, [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match="^mask must be a tensor or an array, got "):
            m.prevalence(value)


def test_tensors_are_not_copied():
    assert to_tensor("maps", MAPS) is MAPS
    array = np.zeros(3)
    to_tensor("maps", array)[0] = 1
    assert array[0] == 0
