"""Accuracy by scikit-learn, and ties by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from infsa_metrics import bootstrap_mean
from sklearn.metrics import top_k_accuracy_score

from infsa_explain.data import PhotoDigits, Subset
from infsa_explain.data.samples import Sample
from infsa_explain.evaluate import Accuracy, measure
from infsa_explain.models.loading import load
from infsa_explain.report import accuracy_table, summarise_accuracy, write_report
from infsa_explain.vits.preprocessing import preprocess

DATA = PhotoDigits("val", 40)


def test_top_1_and_top_5_are_scikit_learns(tmp_path):
    model = load("infvit_linear_digits")
    rows = measure(model, DATA, Accuracy(), name="m", batch_size=16)
    samples = [DATA[i] for i in range(40)]
    with torch.no_grad():
        logits = model(preprocess(model, [s.image for s in samples])).numpy()
    labels = [s.label for s in samples]
    (summary,) = summarise_accuracy(rows)
    for k, found in ((1, summary.top1), (5, summary.top5)):
        expected = top_k_accuracy_score(labels, logits, k=k, labels=range(10))
        assert found.mean == pytest.approx(expected, abs=1e-12)
    hits, clusters = [r["predicted"] == r["label"] for r in rows], [s.cluster for s in samples]
    assert summary.top1 == bootstrap_mean(hits, clusters=clusters, proportion=True)
    assert summary.chance == 0.1
    assert accuracy_table([summary])[0][-1] == "40"
    write_report(tmp_path, rows)
    assert (tmp_path / "summary.md").read_text().count("| m |") == 1


def test_a_tie_is_no_hit():
    """A model that says the same of every class is right of none."""

    class Flat(torch.nn.Module):
        pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}

        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(10))

        def forward(self, x):
            return self.bias.expand(len(x), -1)

    (summary,) = summarise_accuracy(measure(Flat(), Subset(DATA, range(8)), Accuracy()))
    assert (summary.top1.mean, summary.top5.mean) == (0, 0)


@pytest.mark.parametrize("label", [None, 10, -1])
def test_a_label_without_an_output_is_named(label):
    class One:
        name, classes = "one", []

        def __len__(self):
            return 1

        def __getitem__(self, i):
            pixels, none = np.zeros((112, 112, 3), np.uint8), np.zeros((0, 4), np.float32)
            return Sample(pixels, label, none, "the image")

    with pytest.raises(ValueError, match=f"the image has the label {label}; .* 0 to 9"):
        measure(load("infvit_linear_digits"), One(), Accuracy())
