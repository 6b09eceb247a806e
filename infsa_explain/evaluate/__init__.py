"""Measure models and their maps: model × data × methods × measure, as rows, one per image.

:mod:`infsa_explain.report` turns the rows into tables and pictures.
"""

from .accuracy import AccuracyOptions, evaluate_accuracy
from .alignment import AlignmentOptions, evaluate_alignment
from .deletion import MorfOptions, evaluate_morf
from .localization import BoxOptions, evaluate_boxes
from .maps import UNTRAINED, MapOptions, choose_methods
from .runs import RunFolder, describe_run, fingerprint

__all__ = [
    "UNTRAINED",
    "AccuracyOptions",
    "AlignmentOptions",
    "BoxOptions",
    "MapOptions",
    "MorfOptions",
    "RunFolder",
    "choose_methods",
    "describe_run",
    "evaluate_accuracy",
    "evaluate_alignment",
    "evaluate_boxes",
    "evaluate_morf",
    "fingerprint",
]
