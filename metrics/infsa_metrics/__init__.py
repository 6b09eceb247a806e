"""Measures of how well a map explains a model: tensors and callables in, per-image values out."""

from infsa_metrics.alignment import centred_cosine, cosine, spearman
from infsa_metrics.deletion import DeletionCurve, PredictMasked, deletion_curve, rank_patches, srg
from infsa_metrics.extremes import ExtremeOrders, extreme_orders, naopc
from infsa_metrics.faithfulness import infidelity, sensitivity_max
from infsa_metrics.fills import FILLS, filled_once, pixel_fill, register_fill
from infsa_metrics.focus import effective_patches, entropy, gini, token_similarity
from infsa_metrics.localization import (
    average_precision,
    box_mask,
    iou_at_best,
    iou_at_mean,
    mass_accuracy,
    pointing_game,
    precision_at_recall,
    prevalence,
    rank_accuracy,
    roc_auc,
)
from infsa_metrics.outputs import class_logits, class_probabilities, output_tensor
from infsa_metrics.sanity import agreement, rank_correlation, ssim, stability
from infsa_metrics.statistics import (
    MeanInterval,
    PairedTest,
    bootstrap_mean,
    holm,
    paired_test,
    paired_tests,
)

__all__ = [
    "FILLS",
    "DeletionCurve",
    "ExtremeOrders",
    "MeanInterval",
    "PairedTest",
    "PredictMasked",
    "agreement",
    "average_precision",
    "bootstrap_mean",
    "box_mask",
    "centred_cosine",
    "class_logits",
    "class_probabilities",
    "cosine",
    "deletion_curve",
    "effective_patches",
    "entropy",
    "gini",
    "holm",
    "infidelity",
    "iou_at_best",
    "iou_at_mean",
    "mass_accuracy",
    "output_tensor",
    "naopc",
    "paired_test",
    "paired_tests",
    "extreme_orders",
    "filled_once",
    "pixel_fill",
    "pointing_game",
    "precision_at_recall",
    "prevalence",
    "rank_accuracy",
    "rank_correlation",
    "rank_patches",
    "register_fill",
    "roc_auc",
    "sensitivity_max",
    "spearman",
    "srg",
    "ssim",
    "stability",
    "token_similarity",
]
