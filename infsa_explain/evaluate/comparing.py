"""Models compared on the same images, by paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .findings import LEVEL, capital, names_text
from .registry import Measure, ModelValues
from .rows import Row
from .tables import Table, difference_cell
from .values import Difference, Values, differences

__all__ = ["Comparison", "compare_models", "comparison_table", "comparison_texts"]

NOTE = (
    "Differences: p and intervals hold together for all maps of two models and one quantity "
    "(maximum of |t| over resamples)."
)


@dataclass(frozen=True)
class Comparison:
    """A number of one model minus that of another, on the images that both have.

    Attributes:
        measure: name of the measure.
        quantity: what is compared, such as "MoRF-AOC over random".
        first, second: names of the models; the difference is first − second.
        method: of the maps; empty for a number of the model itself.
        difference: the difference and its test.
        scale, spec: how it is written, as of :class:`~infsa_explain.evaluate.Measure`.
    """

    measure: str
    quantity: str
    first: str
    second: str
    method: str
    difference: Difference
    scale: float
    spec: str


def compare_models(
    measures: Mapping[str, type[Measure]], rows: Mapping[str, Sequence[Row]]
) -> list[Comparison]:
    """Every two models of a run, by every quantity in which models may be compared.

    Args:
        measures: by name.
        rows: of every measure, by its name.
    """
    return [
        Comparison(name, quantity, *pair, method, difference, measure.scale, measure.spec)
        for name, measure in measures.items()
        for quantity, models in measure.quantities(rows[name]).items()
        for pair in combinations(models, 2)
        for method, difference in _family(models[pair[0]], models[pair[1]]).items()
    ]


def _family(first: ModelValues, second: ModelValues) -> dict[str, Difference]:
    """Differences of all methods that both models have, on the images that both have."""
    (images, of_first), (others, of_second) = first, second
    place = {name: i for i, name in enumerate(others.names)}
    shared = [(i, place[name]) for i, name in enumerate(images.names) if name in place]
    if not shared:
        return {}
    left, right = (np.array(indices) for indices in zip(*shared, strict=True))
    clusters = None if images.clusters is None else tuple(images.clusters[i] for i in left)

    def chosen(values: Values, indices: NDArray[np.intp]) -> Values:
        return Values(values.matrix[:, indices], clusters)

    pairs = {}
    for method in of_first:
        if method in of_second:
            a, b = chosen(of_first[method], left), chosen(of_second[method], right)
            if len(a.matrix) != len(b.matrix):  # as many trainings are needed for their variance
                a, b = (Values(x.of_images[None], clusters) for x in (a, b))
            pairs[method] = (a, b)
    return differences(pairs)


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One row for each comparison."""
    cells = [
        (
            f"{c.first} − {c.second}",
            c.quantity,
            c.method or "—",
            difference_cell(c.difference, c.scale, f"+{c.spec}"),
            str(c.difference.interval.n),
        )
        for c in comparisons
    ]
    headings = ("models", "quantity", "method", "difference [95%]", "n")
    trainings = min((c.difference.interval.trainings for c in comparisons), default=1)
    caution = "" if trainings > 1 else " One training of each: another may come out differently."
    return Table("models compared, paired by image", headings, cells, NOTE + caution)


def comparison_texts(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A sentence for every two models and every quantity."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for c in comparisons:
        if c.difference.interval.n > 1:
            groups.setdefault((c.first, c.second, c.quantity), []).append(c)
    for (first, second, quantity), group in groups.items():
        better = [c for c in group if _differs(c) and c.difference.interval.mean > 0]
        worse = [c for c in group if _differs(c) and c.difference.interval.mean < 0]
        if not group[0].method:
            cell = difference_cell(group[0].difference, group[0].scale, f"+{group[0].spec}")
            doubt = "" if better or worse else ", which chance may explain"
            yield f"{capital(quantity)} of `{first}` minus that of `{second}`: {cell}{doubt}."
            continue
        parts = []
        for sign, differing in (("higher", better), ("lower", worse)):
            if differing:
                names = names_text([c.method for c in differing])
                parts.append(f"{sign} for {len(differing)} of {len(group)} maps ({names})")
        said = " and ".join(parts) or f"not different, by a test, for any of {len(group)} maps"
        yield f"{quantity} of `{first}` compared with `{second}` is {said}."


def _differs(comparison: Comparison) -> bool:
    return comparison.difference.p_value <= LEVEL
