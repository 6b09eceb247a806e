"""What the numbers of a run say, in sentences; none claims more than its test supports.

A map *beats* a control where the paired test over images has p ≤ 0.05 after Holm's correction over
all tests of its table, and the mean difference is positive. The maps of a model untrained are
controls, like ``random`` and ``centre``: they are told of, and never called the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from infsa_metrics import MeanInterval

from ..evaluate.batches import UNTRAINED
from .alignment import AlignmentSummary
from .sanity import SanitySummary
from .tables import CONTROLS, MINIMUM_IMAGES, Difference, interval_cell
from .writing import Report

__all__ = ["Finding", "Verdict", "is_control", "judge"]

#: Largest corrected p-value at which a difference is called one.
LEVEL = 0.05
#: A map that keeps more than this of its order (Spearman's ρ) has hardly changed.
ALIKE = 0.5
#: So many names are listed; more are counted.
LISTED = 5


class Finding(NamedTuple):
    """What one measure found: a name for it, and a paragraph for every model."""

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


class _Score(NamedTuple):
    """A measure by which maps are compared with controls."""

    model: str
    method: str
    value: MeanInterval
    over: dict[str, Difference]


def judge(report: Report) -> Verdict:
    """The verdict on a run.

    Args:
        report: of the run's rows; of measures that it lacks nothing is said.
    """
    found = report.summaries
    deletion = [_Score(s.model, s.method, s.aoc, s.over) for s in found.get("morf", ())]
    boxes = [_Score(s.model, s.method, s.measures["ap"], s.over) for s in found.get("boxes", ())]
    prevalence = {s.model: s.measures["prevalence"] for s in found.get("boxes", ())}
    vectors = found.get("align", {}).get("vectors", ())
    side = report.rows["align"][0]["side"] if vectors else ""
    findings = [
        Finding("Deletion", [_of_maps(own, "MoRF-AOC") for own in _by_model(deletion)]),
        Finding(
            "Boxes",
            [
                _of_maps(own, "PR-AUC") + _of_prevalence(prevalence[own[0].model])
                for own in _by_model(boxes)
            ],
        ),
        Finding("Alignment", [_of_vectors(own, side) for own in _by_model(vectors)]),
        Finding("Sanity", [_of_sanity(own) for own in _by_model(found.get("sanity", ()))]),
        Finding(
            "Accuracy",
            [
                f"`{s.model}` classifies {interval_cell(s.top1)}% of the images as they are "
                f"labelled; a guess is right for {100 * s.chance:.1f}%."
                for s in found.get("accuracy", ())
            ],
        ),
    ]
    return Verdict(
        _headline(deletion, boxes, vectors, side),
        [finding for finding in findings if finding.paragraphs],
        list(_cautions(report, [deletion, boxes])),
    )


def is_control(method: str) -> bool:
    """Whether a map owes nothing to what the model has learned.

    >>> [is_control(name) for name in ("visits", "centre", "untrained-visits")]
    [False, True, True]
    """
    return method in CONTROLS or method.startswith(UNTRAINED)


def _headline(
    deletion: Sequence[_Score],
    boxes: Sequence[_Score],
    vectors: Sequence[AlignmentSummary],
    side: str,
) -> str:
    """How many maps beat the blob; without such tests, how the weights stand to the degree."""
    told: list[str] = []
    for name, scores in (("by deletion", deletion), ("by boxes", boxes)):
        if tests := _tests(s.over.get("centre") for s in scores if not is_control(s.method)):
            blob = "it" if told else "`centre`, a fixed blob that looks at nothing"
            told.append(
                f"{name}, {_count(sum(map(_above, tests)), len(tests))} {blob}"
                + _as_untrained(scores)
            )
    if told:
        return _capital("; ".join(told)) + "."
    if deletion or boxes:
        return "Whether any map is better than a fixed blob in the middle is not known: no test."
    if tests := _tests(s.behind for s in vectors if s.vector == "degree"):
        better, worse = sum(map(_above, tests)), sum(map(_below, tests))
        return (
            f"Of {_plural(len(tests), 'model')}, the linear weights follow the Perron vector "
            f"better than plain {_degree(side)} does in {better}, and less well in {worse}."
        )
    return "This run compares no map with a control, so it finds none better than another."


def _as_untrained(scores: Sequence[_Score]) -> str:
    """Such as " (and so do 2 of 3 maps of models untrained)"; nothing where none does."""
    tests = _tests(s.over.get("centre") for s in scores if s.method.startswith(UNTRAINED))
    if not (above := sum(map(_above, tests))):
        return ""
    if len(tests) == 1:
        return " (and so does the map of the model untrained)"
    do = "does" if above == 1 else "do"
    return f" (and so {do} {above} of {len(tests)} maps of models untrained)"


def _of_maps(scores: Sequence[_Score], measure: str) -> str:
    """One model's maps: the highest, what it is over the controls, and which beat ``centre``."""
    model, maps = scores[0].model, [s for s in scores if not is_control(s.method)]
    known = [s for s in maps if s.value.n]
    if not maps:
        return f"On `{model}` only controls were measured."
    if not known:
        return f"On `{model}` no image has a defined {measure}."
    best = max(known, key=lambda s: s.value.mean)
    cell = interval_cell(best.value)
    if len(maps) == 1:
        text = f"On `{model}`, `{best.method}`, its only map, has a {measure} of {cell}"
    else:
        text = (
            f"On `{model}`, `{best.method}` has the highest {measure} of {len(maps)} maps, {cell}"
        )
    text += ": " if best.over else "."
    text += ", and ".join(_against(c, best.over[c]) for c in CONTROLS if c in best.over)
    sentences = [text.rstrip(".") + "."]
    tests = {s.method: test for s in maps for test in _tests([s.over.get("centre")])}
    if len(tests) > 1:
        above = [method for method, test in tests.items() if _above(test)]
        some = 0 < len(above) < len(tests)
        sentences.append(
            _capital(_count(len(above), len(tests)))
            + " `centre`"
            + (f": {_list(above)}." if some and len(above) <= LISTED else ".")
        )
        if below := [method for method, test in tests.items() if _below(test)]:
            many = len(below) > LISTED
            sentences.append(f"Worse than it: {f'{len(below)} maps' if many else _list(below)}.")
    elif not tests:
        sentences.append("Nothing tests whether it beats `centre`, a fixed blob.")
    sentences += [_of_untrained(s, measure) for s in scores if s.method.startswith(UNTRAINED)]
    return " ".join(sentences)


def _of_untrained(score: _Score, measure: str) -> str:
    """What a map of the model untrained scores, and what follows if it beats ``centre``."""
    text = f"From the same model untrained, `{score.method}` scores {interval_cell(score.value)}"
    tests = _tests([score.over.get("centre")])
    if not tests:
        return f"{text}."
    if _above(tests[0]):
        return f"{text} and beats `centre` too: on these images that takes no training."
    return f"{text} and does not beat `centre`."


def _of_prevalence(share: MeanInterval) -> str:
    if not share.n:
        return " No image has a box that leaves something outside."
    return f" A constant map scores the prevalence, {100 * share.mean:.1f}."


def _of_vectors(summaries: Sequence[AlignmentSummary], side: str) -> str:
    """One model's linear weights beside the degree and the weights untrained."""
    by = {s.vector: s for s in summaries}
    linear = by["linear"]
    text = (
        f"On `{linear.model}`, the linear weights agree with the {side} Perron vector at cosine "
        f"{_cosine(linear.cosine)}"
    )
    sentences = [f"{text}."]
    for vector, name in (
        ("degree", f"plain {_degree(side)}"),
        ("untrained", "the model untrained"),
    ):
        other = by.get(vector)
        if other is None or not other.cosine.n:
            continue
        told = f"{_capital(name)} has {_cosine(other.cosine)}"
        for test in _tests([other.behind]):
            how = "are better" if _above(test) else "are worse" if _below(test) else ""
            told += f": {f'the weights {how}' if how else 'no difference is found'} ({_p(test)})"
        sentences.append(f"{told}.")
    if linear.dead:
        sentences.append(
            f"Dead heads, {linear.dead / linear.heads:.1%}, count as 0 in the first; without them "
            f"it is {_cosine(linear.alive)}."
        )
    if linear.left_out:
        sentences.append(
            f"Heads without one proven Perron vector, {linear.left_out / linear.heads:.1%}, are "
            "left out."
        )
    return " ".join(sentences)


def _of_sanity(summaries: Sequence[SanitySummary]) -> str:
    """What is left of one model's maps when all its weights are random."""
    model = summaries[0].model
    left = {s.method: s.spearman[-1] for s in summaries if not is_control(s.method)}
    if not left:
        return f"On `{model}` only controls were measured."
    groups: dict[str, dict[str, MeanInterval]] = {}
    for method, rho in left.items():
        groups.setdefault(_remains(rho), {})[method] = rho
    told = "; ".join(f"{what}: {_correlations(own)}" for what, own in groups.items())
    return f"With all weights of `{model}` random, by Spearman's ρ to the trained map, {told}."


def _correlations(maps: dict[str, MeanInterval]) -> str:
    """Such as "`visits` (0.05 [-0.00, 0.12]), `degree` (…)", or of many "9 maps (0.02 to 0.31)"."""
    means = [rho.mean for rho in maps.values()]
    if len(maps) > LISTED:
        known = min(means) == min(means)  # not NaN
        return f"{len(maps)} maps" + (f" ({min(means):.2f} to {max(means):.2f})" if known else "")
    return ", ".join(
        f"`{method}` ({interval_cell(rho, 1, '.2f')})" if rho.n else f"`{method}`"
        for method, rho in maps.items()
    )


def _remains(rho: MeanInterval) -> str:
    """What a rank correlation with its interval says of a map made random."""
    if not rho.n:
        return "undefined, for the map is constant"
    if rho.n == 1:
        return "tried on one image alone"
    if rho.low > ALIKE:
        return "hardly changed, so that it shows little of what was learned"
    if rho.low > 0:
        return "part of the order is left"
    if rho.high < 0:
        return "part of the order is reversed"
    return "no order is left that can be told from chance"


def _cautions(report: Report, tables: Iterable[Sequence[_Score]]) -> Iterator[str]:
    """What limits the findings."""
    few = min(_numbers_of_images(report.summaries), default=MINIMUM_IMAGES)
    if few < MINIMUM_IMAGES:
        yield (
            f"Few images: some means are over {few}. Below {MINIMUM_IMAGES}, bootstrap intervals "
            "are too narrow and tests say little."
        )
    rows = (row for own in report.rows.values() for row in own)
    models = [model for model, _ in dict.fromkeys((r["model"], r["checkpoint"]) for r in rows)]
    if single := [m for m in dict.fromkeys(models) if models.count(m) == 1]:
        yield (
            f"One seed: of {_list(single)} a single training was measured. Intervals are "
            "over images; another training may come out differently."
        )
    for scores in tables:
        if lacking := [c for c in CONTROLS if scores and all(s.method != c for s in scores)]:
            yield f"Not in the run: the control {_list(lacking)}; there is no test against it."
            break
    if len({row["model"] for row in report.rows.get("morf", ())}) > 1:
        yield (
            "MoRF-AOC cannot be compared between models, as one that any deletion confuses has a "
            "high one with any map; what is over `random` can."
        )


def _numbers_of_images(value: Any) -> Iterator[int]:
    """n of every mean in the summaries."""
    if isinstance(value, MeanInterval):
        yield value.n
    elif isinstance(value, dict):
        for each in value.values():
            yield from _numbers_of_images(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers_of_images(each)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _numbers_of_images(list(vars(value).values()))


def _by_model(summaries: Iterable[Any]) -> list[list[Any]]:
    groups: dict[str, list[Any]] = {}
    for summary in summaries:
        groups.setdefault(summary.model, []).append(summary)
    return list(groups.values())


def _tests(differences: Iterable[Difference | None]) -> list[Difference]:
    """Those that are tested: of one image there is no test."""
    return [each for each in differences if each is not None and each.interval.n > 1]


def _above(test: Difference) -> bool:
    return test.p_value <= LEVEL and test.interval.mean > 0


def _below(test: Difference) -> bool:
    return test.p_value <= LEVEL and test.interval.mean < 0


def _against(control: str, test: Difference) -> str:
    """Such as "+3.1 [+0.9, +5.4] over `centre` (p 0.229, which chance may explain)"."""
    text = f"{interval_cell(test.interval, spec='+.1f')} over `{control}`"
    if not _tests([test]):
        return f"{text} (no test)"
    doubt = "" if test.p_value <= LEVEL else ", which chance may explain"
    return f"{text} ({_p(test)}{doubt})"


def _p(test: Difference) -> str:
    return "p < 0.001" if test.p_value < 0.001 else f"p {test.p_value:.3f}"


def _cosine(value: MeanInterval) -> str:
    return interval_cell(value, 1, ".3f")


def _degree(side: str) -> str:
    """The degree that goes with a Perron vector."""
    return "in-degree" if side == "left" else "out-degree"


def _count(some: int, of: int) -> str:
    """Such as "3 of 8 maps beat"."""
    if of == 1:
        return "the one map beats" if some else "the one map does not beat"
    if some == of:
        return "both maps beat" if of == 2 else f"all {of} maps beat"
    return f"{some} of {of} maps beat" if some else f"none of {of} maps beats"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
