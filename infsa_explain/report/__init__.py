"""Rows become tables and pictures; every number has its interval, and its control beside it.

A section says how the rows of one measure are told: :func:`section` registers it by the measure's
name.
"""

from .accuracy import ACCURACY_HEADINGS, AccuracySummary, accuracy_table, summarise_accuracy
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
)
from .deletion import (
    MORF_HEADINGS,
    MorfSummary,
    mean_curves,
    morf_table,
    plot_curves,
    summarise_morf,
)
from .faithfulness import FaithfulnessSummary, summarise_faithfulness
from .focus import FocusSummary, SimilaritySummary, summarise_focus, summarise_similarity
from .localization import BOX_HEADINGS, BoxSummary, box_table, summarise_boxes
from .sanity import SanitySummary, plot_sanity, summarise_sanity
from .sections import SECTIONS, Section, section
from .tables import Difference, Seeds, Table, caution, markdown
from .writing import Report, write_report

__all__ = [
    "ACCURACY_HEADINGS",
    "ALIGNMENT_HEADINGS",
    "BOX_HEADINGS",
    "LAYER_HEADINGS",
    "MORF_HEADINGS",
    "SECTIONS",
    "AccuracySummary",
    "AlignmentSummary",
    "BoxSummary",
    "Difference",
    "FaithfulnessSummary",
    "FocusSummary",
    "LayerSummary",
    "MorfSummary",
    "Report",
    "SanitySummary",
    "Section",
    "Seeds",
    "SimilaritySummary",
    "Table",
    "accuracy_table",
    "alignment_table",
    "box_table",
    "caution",
    "layer_table",
    "markdown",
    "mean_curves",
    "morf_table",
    "plot_alignment",
    "plot_curves",
    "plot_sanity",
    "section",
    "summarise_accuracy",
    "summarise_alignment",
    "summarise_boxes",
    "summarise_faithfulness",
    "summarise_focus",
    "summarise_layers",
    "summarise_morf",
    "summarise_sanity",
    "summarise_similarity",
    "write_report",
]
