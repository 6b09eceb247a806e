"""Write the table of map methods in ``docs/methods.md`` from the registry.

Run from the checkout: ``python experiments/methods_table.py``. A test compares the page.
"""

from __future__ import annotations

from pathlib import Path

from infsa_explain.methods import METHODS, UNTRAINED
from infsa_explain.vits.kinds import INFSA, KINDS

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- methods: experiments/methods_table.py -->", "<!-- end of methods -->"


def table() -> str:
    """One row per method, in the order of the registry."""
    words = {frozenset(KINDS): "any", frozenset(INFSA): "InfSA"}
    lines = ["| method | what it is | attention |", "| --- | --- | --- |"]
    for method in METHODS.values():
        name = f"`{method.name}`" + " (of a class)" * method.class_specific
        summary = method.summary.rstrip(".").replace("|", "\\|")
        kinds = words.get(method.kinds) or ", ".join(sorted(method.kinds))
        lines.append(f"| {name} | {summary} | {kinds} |")
    lines.append(f"| `{UNTRAINED}NAME` | Control: the map of the model untrained | any |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """A page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
