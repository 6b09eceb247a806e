"""Sentences that a verdict is made of; none claims more than its test supports.

A map *beats* a control if the paired test over images has p ≤ 0.05, adjusted for all maps of its
model, and its mean is the better one. The maps of a model untrained are controls, like ``random``
and ``centre``: they are reported, and never called the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infsa_metrics import MeanInterval

from .tables import CONTROLS, UNTRAINED, interval_cell, is_control
from .values import Difference

__all__ = ["LEVEL", "Score", "capital", "count_text", "maps_text", "names_text", "p_text", "tested"]

#: Largest adjusted p-value at which a difference is called one.
LEVEL = 0.05
#: So many names are listed; more are counted.
LISTED = 5
#: The control that a headline speaks of.
BLOB = "centre"


class Score(NamedTuple):
    """The mean of a measure for one map, and its differences to the controls."""

    model: str
    method: str
    value: MeanInterval
    over: dict[str, Difference]
    higher_is_better: bool = True

    def beats(self, control: str) -> bool:
        """Whether it is better than a control, by a test."""
        return any(self._better(test) and test.p_value <= LEVEL for test in self.tests(control))

    def loses_to(self, control: str) -> bool:
        """Whether it is worse than a control, by a test."""
        return any(
            not self._better(test) and test.p_value <= LEVEL and test.interval.mean != 0
            for test in self.tests(control)
        )

    def tests(self, control: str) -> list[Difference]:
        """The test against a control, or nothing."""
        return tested([self.over.get(control)])

    def _better(self, test: Difference) -> bool:
        return test.interval.mean > 0 if self.higher_is_better else test.interval.mean < 0


def maps_text(scores: Sequence[Score], heading: str, scale: float = 100, spec: str = ".1f") -> str:
    """One model's maps: the best, its differences to the controls, and which beat the blob."""
    model, maps = scores[0].model, [s for s in scores if not is_control(s.method)]
    if not maps:
        return f"On `{model}` only controls were measured."
    defined = [s for s in maps if s.value.n]
    if not defined:
        return f"On `{model}` no image has a defined {heading}."
    sign = 1 if scores[0].higher_is_better else -1
    best = max(defined, key=lambda s: sign * s.value.mean)
    cell = interval_cell(best.value, scale, spec)
    if len(maps) == 1:
        text = f"On `{model}`, `{best.method}`, its only map, has a {heading} of {cell}"
    else:
        most = "highest" if sign > 0 else "lowest"
        text = f"On `{model}`, `{best.method}` has the {most} {heading} of {len(maps)} maps, {cell}"
    against = [_against(c, best.over[c], scale, spec) for c in CONTROLS if c in best.over]
    sentences = [": ".join(filter(None, (text, ", and ".join(against)))) + "."]
    comparable = [s for s in maps if s.tests(BLOB)]
    if len(comparable) > 1:
        sentences += _comparison(comparable)
    elif not comparable:
        sentences.append(f"Nothing tests whether it beats `{BLOB}`, a fixed blob.")
    sentences += [
        _untrained_text(score, scale, spec)
        for score in scores
        if score.method.startswith(UNTRAINED)
    ]
    return " ".join(sentences)


def _comparison(maps: Sequence[Score]) -> list[str]:
    """How many maps beat the blob, and which are worse than it."""
    better = [s.method for s in maps if s.beats(BLOB)]
    worse = [s.method for s in maps if s.loses_to(BLOB)]
    text = f"{capital(count_text(len(better), len(maps)))} `{BLOB}`"
    if 0 < len(better) < len(maps) and len(better) <= LISTED:
        text += f": {names_text(better)}"
    sentences = [f"{text}."]
    if worse:
        names = f"{len(worse)} maps" if len(worse) > LISTED else names_text(worse)
        sentences.append(f"Worse than it: {names}.")
    return sentences


def _untrained_text(score: Score, scale: float, spec: str) -> str:
    """What a map of the model untrained scores, and what follows if it beats the blob."""
    cell = interval_cell(score.value, scale, spec)
    text = f"From the same model untrained, `{score.method}` scores {cell}"
    if not score.tests(BLOB):
        return f"{text}."
    if score.beats(BLOB):
        return f"{text} and beats `{BLOB}` too: on these images that takes no training."
    return f"{text} and does not beat `{BLOB}`."


def _against(control: str, test: Difference, scale: float, spec: str) -> str:
    """Such as "+3.1 [+0.9, +5.4] over `centre` (p 0.229, which chance may explain)"."""
    text = f"{interval_cell(test.interval, scale, f'+{spec}')} over `{control}`"
    if not tested([test]):
        return f"{text} (no test)"
    doubt = "" if test.p_value <= LEVEL else ", which chance may explain"
    return f"{text} ({p_text(test)}{doubt})"


def tested(differences: Iterable[Difference | None]) -> list[Difference]:
    """The differences that have a test: there is none of a single image."""
    return [d for d in differences if d is not None and d.interval.n > 1]


def p_text(test: Difference) -> str:
    """Such as "p 0.012"."""
    return "p < 0.001" if test.p_value < 0.001 else f"p {test.p_value:.3f}"


def count_text(some: int, of: int) -> str:
    """Such as "3 of 8 maps beat"."""
    if of == 1:
        return "the one map beats" if some else "the one map does not beat"
    if some == of:
        return "both maps beat" if of == 2 else f"all {of} maps beat"
    return f"{some} of {of} maps beat" if some else f"none of {of} maps beats"


def names_text(names: Sequence[str]) -> str:
    """Such as "`visits`, `degree`"."""
    return ", ".join(f"`{name}`" for name in names)


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
