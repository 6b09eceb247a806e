"""Several measures at once, and which model their rows are of."""

from __future__ import annotations

import pytest

from infsa_explain import evaluate
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Accuracy, Alignment, Boxes, Focus, Morf, Sanity, measure
from infsa_explain.models.loading import load
from infsa_explain.vits.capturing import capture

DATA = PhotoDigits("val", 3)
MAPS = {"methods": ("visits", "random", "untrained-degree"), "layer": 1}
EVERY = (
    Morf(**MAPS, steps=2),
    Boxes(**MAPS),
    Alignment(layers=(0,)),
    Focus(**MAPS),
    Sanity(**MAPS, draws=1),
    Accuracy(),
)


@pytest.fixture(scope="module")
def model():
    return load("infvit_linear_digits")


def test_together_as_alone(model):
    """But for the order, and the time that a row says it took."""
    together = measure(model, DATA, *EVERY, name="m", checkpoint="c")
    assert {(row["model"], row["checkpoint"]) for row in together} == {("m", "c")}
    for each in EVERY:
        own = [row for row in together if row["measure"] == each.name]
        alone = measure(model, DATA, each, name="m", checkpoint="c")
        for rows in (own, alone):
            for row in rows:
                row.pop("seconds", None)
        assert own == alone != []


def test_measures_share_the_pass_through_the_model(model, monkeypatch):
    passes = []

    def counted(network, images):
        passes.append(network)
        return capture(network, images)

    monkeypatch.setattr(evaluate.batches, "capture", counted)
    measure(model, DATA, Boxes(**MAPS), Boxes(**MAPS, tolerance=0), Alignment(layers=(0,)))
    assert len(passes) == 4  # the model, and untrained with each of three starts
    assert passes.count(model) == 1


def test_options_are_checked_before_any_image_is_read(model):
    class Unread:
        name, classes = "unread", []

        def __len__(self):
            return 1

        def __getitem__(self, i):
            raise AssertionError("an image was read")

    for wrong, message in (
        (Morf(fill="grey"), "unknown fill 'grey'"),
        (Boxes(target="truth"), "got 'truth'; the model's .*; or 'predicted', or 'label'"),
        (Focus(methods=("vists",)), "did you mean visits"),
        (Sanity(noise=0), "noise must be above 0, got 0"),
        (Sanity(draws=0), "draws must be at least 1, got 0"),
        (Alignment(steps=(1,)), "steps must each be at least 2"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(model, Unread(), Accuracy(), wrong)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        measure(model, Unread(), Accuracy(), batch_size=0)


def test_rows_name_the_cluster_of_an_image_that_has_one(model):
    class Half(PhotoDigits):
        def __getitem__(self, i):
            sample = super().__getitem__(i)
            return sample._replace(cluster=None) if i == 1 else sample

    rows = measure(model, Half("val", 3), Boxes(**MAPS), Accuracy())
    for i, sample in enumerate(DATA):
        of_image = [row for row in rows if row["image"] == sample.image_id]
        assert len(of_image) == 4
        expected = None if i == 1 else sample.cluster
        assert {row.get("cluster") for row in of_image} == {expected}
