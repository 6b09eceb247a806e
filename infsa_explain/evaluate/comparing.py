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

__all__ = ["Comparison", "compare_models", "comparison_tables", "comparison_texts"]

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


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """A table for every two models: a row for each method, a column for each quantity."""
    return [_table(*pair, group) for pair, group in _by_pair(comparisons).items()]


def _by_pair(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], list[Comparison]]:
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault((c.first, c.second), []).append(c)
    return groups


def _table(first: str, second: str, comparisons: Sequence[Comparison]) -> Table:
    cells = {
        (c.method, c.quantity): difference_cell(c.difference, c.scale, f"+{c.spec}")
        for c in comparisons
    }
    images = {c.quantity: c.difference.interval.n for c in comparisons}
    methods = dict.fromkeys(c.method for c in comparisons)
    rows = [
        (method or "(the model)", *(cells.get((method, quantity), "—") for quantity in images))
        for method in methods
    ]
    headings = ("method", *(f"{quantity} [95%], n {n}" for quantity, n in images.items()))
    note = NOTE
    if any(c.difference.interval.trainings == 1 for c in comparisons):
        note += " One training of each model: another may come out differently."
    return Table(f"{first} − {second}, paired by image", headings, rows, note)


def comparison_texts(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A sentence for every two models and every quantity."""
    for (first, second), of_pair in _by_pair(comparisons).items():
        for quantity in dict.fromkeys(c.quantity for c in of_pair):
            group = [c for c in of_pair if c.quantity == quantity and c.difference.interval.n > 1]
            if group and group[0].method:
                yield _maps_text(first, second, quantity, group)
            elif group:
                yield _model_text(group[0])


def _maps_text(first: str, second: str, quantity: str, maps: Sequence[Comparison]) -> str:
    """Such as "`a` has a higher SRG than `b` for 1 of 2 maps (`visits`)."."""
    higher = [c.method for c in maps if _differs(c) and c.difference.interval.mean > 0]
    lower = [c.method for c in maps if _differs(c) and c.difference.interval.mean < 0]
    parts = [
        f"a {word} {quantity} than `{second}` for {len(methods)} of {len(maps)} maps "
        f"({names_text(methods)})"
        for word, methods in (("higher", higher), ("lower", lower))
        if methods
    ]
    if not parts:
        number = "the one map" if len(maps) == 1 else f"any of {len(maps)} maps"
        return f"`{first}` and `{second}` do not differ in {quantity}, by a test, for {number}."
    return f"`{first}` has {' and '.join(parts)}."


def _model_text(comparison: Comparison) -> str:
    """Such as "Top-1 accuracy of `a` minus that of `b`: +2.0 [+0.1, +3.9] p 0.040 d 0.1."."""
    c = comparison
    cell = difference_cell(c.difference, c.scale, f"+{c.spec}")
    doubt = "" if _differs(c) else ", which chance may explain"
    return f"{capital(c.quantity)} of `{c.first}` minus that of `{c.second}`: {cell}{doubt}."


def _differs(comparison: Comparison) -> bool:
    return comparison.difference.p_value <= LEVEL
