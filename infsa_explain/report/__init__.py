"""Rows become tables and pictures; every number has its interval, and its control beside it."""

from .accuracy import (
    ACCURACY_HEADINGS,
    AccuracySummary,
    accuracy_table,
    summarise_accuracy,
    write_accuracy,
)
from .alignment import (
    ALIGNMENT_HEADINGS,
    LAYER_HEADINGS,
    AlignmentSummary,
    LayerSummary,
    alignment_table,
    layer_table,
    plot_alignment,
    summarise_alignment,
    summarise_layers,
    write_alignment,
)
from .deletion import (
    MORF_HEADINGS,
    MorfSummary,
    mean_curves,
    morf_markdown,
    morf_table,
    plot_curves,
    summarise_morf,
    write_morf,
)
from .localization import BOX_HEADINGS, BoxSummary, box_table, summarise_boxes, write_boxes
from .tables import Difference, caution

__all__ = [
    "ACCURACY_HEADINGS",
    "AccuracySummary",
    "accuracy_table",
    "summarise_accuracy",
    "write_accuracy",
    "write_boxes",
    "summarise_boxes",
    "box_table",
    "BoxSummary",
    "BOX_HEADINGS",
    "ALIGNMENT_HEADINGS",
    "LAYER_HEADINGS",
    "MORF_HEADINGS",
    "AlignmentSummary",
    "Difference",
    "LayerSummary",
    "MorfSummary",
    "alignment_table",
    "caution",
    "layer_table",
    "mean_curves",
    "morf_markdown",
    "morf_table",
    "plot_alignment",
    "plot_curves",
    "summarise_alignment",
    "summarise_layers",
    "summarise_morf",
    "write_alignment",
    "write_morf",
]
