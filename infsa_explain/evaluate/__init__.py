"""Measures in one registry; model × data × measures become rows, in run folders and shards.

May import: ``methods``, ``models``, ``vits``, ``data``, ``drawing`` and what is below them.
"""

from .accuracy import Accuracy
from .alignment import Alignment
from .batches import UNTRAINED, MapOptions, choose_methods
from .deletion import Morf
from .faithfulness import Infidelity, Sensitivity
from .focus import Focus
from .labelling import labelled
from .localization import Boxes
from .measuring import measure
from .registry import Measure, measure_class, measure_names, option, register_measure
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
    "measure_class",
    "measure_names",
    "option",
    "read_rows",
    "register_measure",
    "unfinished",
]
