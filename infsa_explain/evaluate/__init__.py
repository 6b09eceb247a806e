"""Measure models and their maps: model × data × measures, as rows.

:func:`measure` applies measures such as :class:`Morf` to a model. A measure is one class in one
file; :mod:`infsa_explain.report` turns its rows into tables and pictures.
"""

from .accuracy import Accuracy
from .alignment import Alignment
from .batches import UNTRAINED, MapOptions, choose_methods
from .deletion import Morf
from .faithfulness import Infidelity, Sensitivity
from .focus import Focus
from .labelling import labelled
from .localization import Boxes
from .measuring import Measure, measure
from .runs import RunFolder, describe_run, fingerprint, read_rows, unfinished
from .sanity import Sanity
from .shards import Shard

__all__ = [
    "UNTRAINED",
    "Accuracy",
    "Alignment",
    "Boxes",
    "Focus",
    "Infidelity",
    "MapOptions",
    "Measure",
    "Morf",
    "RunFolder",
    "Sanity",
    "Sensitivity",
    "Shard",
    "choose_methods",
    "describe_run",
    "fingerprint",
    "labelled",
    "measure",
    "read_rows",
    "unfinished",
]
