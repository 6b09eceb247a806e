"""What the numbers of a run say, in sentences: each measure's findings, below one headline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from infsa_metrics import MeanInterval

from ..evaluate.comparing import comparison_texts
from ..evaluate.findings import BLOB, Score, capital, count_text, names_text
from ..evaluate.registry import measure_class
from ..evaluate.tables import CONTROLS, MINIMUM_UNITS, UNTRAINED, is_control
from .writing import Report

__all__ = ["Finding", "Verdict", "judge"]


class Finding(NamedTuple):
    """What one measure found: its title, and a paragraph for every model."""

    measure: str
    paragraphs: list[str]


@dataclass(frozen=True)
class Verdict:
    """What a run found. Names of models and methods stand between backticks.

    Attributes:
        headline: a sentence.
        findings: of every measure that has one.
        cautions: what limits them, a sentence each.
    """

    headline: str
    findings: list[Finding]
    cautions: list[str]

    def text(self) -> str:
        """All of it as plain text in paragraphs."""
        found = [f"{name}: {text}" for name, texts in self.findings for text in texts]
        return "\n\n".join([self.headline, *found, *self.cautions])


def judge(report: Report) -> Verdict:
    """The verdict on a run.

    Args:
        report: of the run's rows.
    """
    findings = [
        Finding(measure.title, measure.findings(report.rows[name], report.summaries[name]))
        for name, measure in report.measures.items()
    ]
    findings.append(Finding("Models compared", [*comparison_texts(report.comparisons)]))
    scores = {
        name: measure.scores(report.summaries[name]) for name, measure in report.measures.items()
    }
    scores = {name: scored for name, scored in scores.items() if scored}
    return Verdict(
        _headline(report, scores),
        [finding for finding in findings if finding.paragraphs],
        list(_cautions(report, scores)),
    )


def _headline(report: Report, scores: dict[str, list[Score]]) -> str:
    """How many maps beat the blob; without such tests, the headline of another measure."""
    parts: list[str] = []
    for name, scored in scores.items():
        tested = [s for s in scored if not is_control(s.method) and s.tests(BLOB)]
        if tested:
            blob = "it" if parts else f"`{BLOB}`, a fixed blob that looks at nothing"
            better = sum(s.beats(BLOB) for s in tested)
            phrase = measure_class(name).phrase or f"by {name}"
            parts.append(
                f"{phrase}, {count_text(better, len(tested))} {blob}{_untrained_too(scored)}"
            )
    if parts:
        return capital("; ".join(parts)) + "."
    if scores:
        return "Whether any map is better than a fixed blob in the middle is not known: no test."
    others = (
        measure.headline(report.rows[name], report.summaries[name])
        for name, measure in report.measures.items()
    )
    nothing = "This run compares no map with a control, so it finds none better than another."
    return next(filter(None, others), nothing)


def _untrained_too(scores: Sequence[Score]) -> str:
    """Such as " (and so do 2 of 3 maps of models untrained)"; nothing where none does."""
    tested = [s for s in scores if s.method.startswith(UNTRAINED) and s.tests(BLOB)]
    better = sum(s.beats(BLOB) for s in tested)
    if not better:
        return ""
    if len(tested) == 1:
        return " (and so does the map of the model untrained)"
    do = "does" if better == 1 else "do"
    return f" (and so {do} {better} of {len(tested)} maps of models untrained)"


def _cautions(report: Report, scores: dict[str, list[Score]]) -> Iterator[str]:
    """What limits the findings."""
    few = min(_numbers_of_units(report.summaries), default=MINIMUM_UNITS)
    if few < MINIMUM_UNITS:
        yield (
            f"Few images: some means are over {few}. Below {MINIMUM_UNITS}, intervals are "
            "approximate and tests say little."
        )
    rows = (row for rows in report.rows.values() for row in rows)
    models = [model for model, _ in dict.fromkeys((r["model"], r["checkpoint"]) for r in rows)]
    if single := [m for m in dict.fromkeys(models) if models.count(m) == 1]:
        yield (
            f"One seed: of {names_text(single)} a single training was measured. Intervals are "
            "over images; another training may come out differently."
        )
    for scored in scores.values():
        if lacking := [c for c in CONTROLS if all(s.method != c for s in scored)]:
            yield f"Not in the run: the control {names_text(lacking)}; there is no test against it."
            break
    for name, measure in report.measures.items():
        yield from measure.cautions(report.rows[name])


def _numbers_of_units(value: Any) -> Iterator[int]:
    """Independent images or clusters of every mean in the summaries."""
    if isinstance(value, MeanInterval):
        yield value.units
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _numbers_of_units(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _numbers_of_units(entry)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _numbers_of_units(list(vars(value).values()))
