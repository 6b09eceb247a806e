"""Run folders become summaries, pictures and one page.

May import: ``evaluate``, which holds how each measure's rows are told, and what is below it.
"""

from ..evaluate.accuracy import accuracy_table, summarise_accuracy
from ..evaluate.alignment_tables import (
    ALIGNMENT_HEADINGS,
    LAYER_HEADINGS,
    AlignmentSummary,
    LayerSummary,
    alignment_table,
    layers_table,
    plot_alignment,
    summarise_alignment,
    summarise_layers,
)
from ..evaluate.deletion_tables import (
    MORF_HEADINGS,
    mean_curves,
    morf_table,
    plot_curves,
    summarise_morf,
)
from ..evaluate.focus import summarise_focus, summarise_similarity
from ..evaluate.localization import BOX_HEADINGS, box_table, summarise_boxes
from ..evaluate.sanity import plot_sanity, summarise_sanity
from ..evaluate.tables import Table, markdown
from ..evaluate.values import Difference, Seeds
from .writing import Report, write_report

__all__ = [
    "ALIGNMENT_HEADINGS",
    "BOX_HEADINGS",
    "LAYER_HEADINGS",
    "MORF_HEADINGS",
    "AlignmentSummary",
    "Difference",
    "LayerSummary",
    "Report",
    "Seeds",
    "Table",
    "accuracy_table",
    "alignment_table",
    "box_table",
    "layers_table",
    "markdown",
    "mean_curves",
    "morf_table",
    "plot_alignment",
    "plot_curves",
    "plot_sanity",
    "summarise_accuracy",
    "summarise_alignment",
    "summarise_boxes",
    "summarise_focus",
    "summarise_layers",
    "summarise_morf",
    "summarise_sanity",
    "summarise_similarity",
    "write_report",
]
