"""How the name of a map looks everywhere on the page: colours, and markers beyond the palette."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..drawing.charts import PALETTE
from ..evaluate.tables import UNTRAINED

__all__ = ["Style", "styles"]

#: Path of each marker around (0, 0); beyond the palette, colours come again with the next.
MARKERS = (
    "",
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
    "M-3 -3h6v6h-6z",
    "M0 -4L4 3h-8z",
    "M0 4L4 -3h-8z",
    "M0 -4L4 0L0 4L-4 0z",
)


class Style(NamedTuple):
    """How a name looks everywhere on the page: a class of the style sheet, and a marker's path."""

    colour: str
    marker: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Colours of the palette in the order of the names; controls are grey.

    >>> {name: style.colour for name, style in styles(["visits", "random", "katz"]).items()}
    {'visits': 'c0', 'random': 'grey0', 'katz': 'c1'}
    """
    fixed = {"random": Style("grey0", ""), "centre": Style("grey1", MARKERS[1])}
    found: dict[str, Style] = {}
    coloured = greyed = 0
    for name in dict.fromkeys(names):
        if name in fixed:
            found[name] = fixed[name]
        elif name.startswith(UNTRAINED) or name in ("uniform", "untrained"):
            found[name] = Style("grey2", MARKERS[2 + greyed % 4])
            greyed += 1
        else:
            turn, place = divmod(coloured, len(PALETTE))
            found[name] = Style(f"c{place}", MARKERS[turn % len(MARKERS)])
            coloured += 1
    return found
