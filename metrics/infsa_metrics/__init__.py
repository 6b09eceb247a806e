"""Measures of how well a map explains a model: tensors and callables in, per-image values out."""

from infsa_metrics.alignment import centred_cosine, cosine, spearman
from infsa_metrics.deletion import DeletionCurve, PredictMasked, deletion_curve, rank_patches, srg
from infsa_metrics.fills import FILLS, pixel_fill, register_fill
from infsa_metrics.statistics import MeanInterval, PairedTest, bootstrap_mean, holm, paired_test

__all__ = [
    "FILLS",
    "DeletionCurve",
    "MeanInterval",
    "PairedTest",
    "PredictMasked",
    "bootstrap_mean",
    "centred_cosine",
    "cosine",
    "deletion_curve",
    "holm",
    "paired_test",
    "pixel_fill",
    "rank_patches",
    "register_fill",
    "spearman",
    "srg",
]
