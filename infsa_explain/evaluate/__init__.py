"""Measure models and their maps: model × data × methods × measure, as rows, one per image.

:mod:`infsa_explain.report` turns the rows into tables and pictures.
"""

from .alignment import AlignmentOptions, evaluate_alignment
from .deletion import UNTRAINED, MorfOptions, choose_methods, evaluate_morf
from .runs import RunFolder, describe_run, fingerprint

__all__ = [
    "UNTRAINED",
    "AlignmentOptions",
    "MorfOptions",
    "RunFolder",
    "choose_methods",
    "describe_run",
    "evaluate_alignment",
    "evaluate_morf",
    "fingerprint",
]
