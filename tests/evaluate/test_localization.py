"""Maps against boxes, measured again image by image with scikit-learn."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import timm
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import infsa_explain.models  # noqa: F401  (registers the names)
from infsa_explain.data import PhotoDigits
from infsa_explain.data.samples import Sample
from infsa_explain.evaluate import Boxes, measure
from infsa_explain.methods import explain
from infsa_explain.vits.preprocessing import preprocess

METHODS = ("visits", "degree", "random", "centre")


class Photographs:
    """Photographs of odd shapes with boxes: one, two that overlap, none, all, and cropped away."""

    name, classes = "photographs", ["a"]
    shapes = [(90, 150), (150, 90), (64, 64), (64, 64), (60, 300)]
    boxes = [
        [[40, 20, 110, 70]],
        [[10, 40, 60, 90], [40, 60, 80, 120]],
        [],
        [[0, 0, 64, 64]],
        [[0, 0, 50, 60]],
    ]

    def __len__(self):
        return 5

    def __getitem__(self, i):
        image = np.random.default_rng(i).integers(0, 256, (*self.shapes[i], 3), dtype=np.uint8)
        boxes = np.array(self.boxes[i], dtype=np.float32).reshape(-1, 4)
        return Sample(image, 0, boxes, f"photograph {i}")

    def fingerprint(self):
        return "none"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model(
        "infvit_linear_digits", img_size=64, depth=2, embed_dim=32, num_heads=4
    ).eval()


def truth(scores, sample, size=64):
    """The map in the frame of the model and the mask of its boxes, by hand."""
    by_opencv = cv2.resize(scores, (size, size), interpolation=cv2.INTER_LINEAR)
    upsampled = torch.nn.functional.interpolate(
        torch.from_numpy(scores)[None, None], (size, size), mode="bilinear", align_corners=False
    )[0, 0].numpy()  # for the ranks, in which rounding decides where a map is nearly flat
    np.testing.assert_allclose(upsampled, by_opencv, atol=1e-7)
    original = np.array(sample.image.shape[1::-1])  # width, height
    resized = original * size // min(original)  # as torchvision does it
    offset = np.round((resized - size) / 2)
    mask = np.zeros((size, size), dtype=bool)
    for box in sample.boxes:
        (x0, y0), (x1, y1) = (edge * resized / original - offset for edge in (box[:2], box[2:]))
        centre = np.arange(size) + 0.5
        mask |= ((centre >= y0) & (centre < y1))[:, None] & ((centre >= x0) & (centre < x1))
    return upsampled, mask


def test_rows_are_scikit_learns_measures(model):
    data = Photographs()
    rows = measure(model, data, Boxes(METHODS), name="m")
    assert [(r["image"], r["method"]) for r in rows[:6]] == [
        (f"photograph {i}", method) for method in METHODS for i in range(5)
    ][:6]
    samples, measured = [data[i] for i in range(5)], 0
    images = preprocess(model, [sample.image for sample in samples])
    seeds = [sample.image_id for sample in samples]
    maps = {m: explain(model, images, m, seeds=seeds).maps.double().numpy() for m in METHODS}
    for row in rows:
        i = seeds.index(row["image"])
        scores, mask = truth(maps[row["method"]][i], samples[i])
        if not mask.any() or mask.all():
            assert row["ap"] is row["roc_auc"] is row["prevalence"] is row["pointing"] is None
            continue
        measured += 1
        ap = average_precision_score(mask.ravel(), scores.ravel())
        assert row["prevalence"] == pytest.approx(mask.mean(), abs=1e-12)
        assert row["ap"] == pytest.approx(ap, abs=1e-9)
        assert row["roc_auc"] == pytest.approx(
            roc_auc_score(mask.ravel(), scores.ravel()), abs=1e-9
        )
        assert row["mass"] == pytest.approx(scores[mask].sum() / scores.sum(), abs=1e-9)
    assert measured == 2 * len(METHODS)  # no box, all box and cropped away are skipped


def test_the_boxes_of_the_label_alone(model):
    """Of two boxes one is of the image's class; of the other images none is, or all are."""

    class Labelled(Photographs):
        box_labels = [[1], [1, 0], [], None, [-1]]

        def __getitem__(self, i):
            labels = self.box_labels[i]
            return (
                super()
                .__getitem__(i)
                ._replace(box_labels=None if labels is None else np.array(labels, dtype=np.int64))
            )

    class Chosen(Photographs):
        boxes = [[], [[40, 60, 80, 120]], [], [[0, 0, 64, 64]], []]

    rows = measure(model, Labelled(), Boxes(METHODS, boxes="label"))
    assert rows == measure(model, Chosen(), Boxes(METHODS))
    everything = measure(model, Labelled(), Boxes(METHODS))
    assert everything == measure(model, Photographs(), Boxes(METHODS)) != rows
    with pytest.raises(ValueError, match="boxes must be 'all' or 'label', got 'some'"):
        measure(model, Labelled(), Boxes(METHODS, boxes="some"))


def test_the_pointing_game_allows_for_the_tolerance(model):
    class Corner(Photographs):
        boxes = [[[0, 0, 6, 6]]] * 5
        shapes = [(64, 64)] * 5

    strict = measure(model, Corner(), Boxes(("centre",), tolerance=0))
    wide = measure(model, Corner(), Boxes(("centre",), tolerance=1))
    assert {row["pointing"] for row in strict} == {0}
    assert {row["pointing"] for row in wide} == {1}


def test_photo_digits_boxes_are_where_the_digit_is():
    """A map that is 1 on the patches of the box finds it, in the model's own size and another."""
    data = PhotoDigits("val", 4)
    for size in (112, 56):
        network = timm.create_model("infvit_linear_digits", img_size=size, depth=1, embed_dim=16)
        rows = measure(network.eval(), data, Boxes(("centre",)))
        for row, sample in zip(rows, (data[i] for i in range(4)), strict=True):
            x0, y0, x1, y1 = sample.boxes[0]
            share = (x1 - x0) * (y1 - y0) / 112**2
            assert row["prevalence"] == pytest.approx(share, abs=0.01)


def test_rows_come_as_they_are_ready(model):
    seen, images = [], []
    rows = measure(
        model, PhotoDigits("val", 3), Boxes(("degree",)), on_row=seen.append,
        on_image=images.append,
    )  # fmt: skip
    assert seen == rows and images == [3]
    assert rows[0]["effective_patches"] <= 1
    assert {row["measure"] for row in rows} == {"boxes"}
