"""A run folder becomes one page that stands alone: ``report.html``.

The page holds its style, script, pictures and numbers, and a policy that lets the browser fetch
nothing and run nothing but this script. Whatever came from outside (names of files, classes and
models) is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..drawing.charts import PALETTE, Forest, Heat, LineChart
from ..evaluate.comparing import comparison_tables
from ..evaluate.findings import LEVEL
from ..evaluate.registry import Measure
from ..evaluate.tables import Table
from ..files import check_file, write_text
from .diagnostics import diagnostics
from .pictures import Gallery
from .reading import Run
from .styles import styles
from .verdict import judge
from .writing import Report

__all__ = ["write_page"]


@dataclass(frozen=True)
class _Section:
    """One measure on the page."""

    measure: str
    title: str
    question: str
    tables: list[Table]
    curves: list[LineChart] = field(default_factory=list)
    forests: list[Forest] = field(default_factory=list)
    heats: list[Heat] = field(default_factory=list)


def write_page(run: Run, gallery: Gallery | str, out: str | os.PathLike[str] | None = None) -> Path:
    """Write the page of a run.

    Args:
        run: as :func:`infsa_explain.report.reading.read_run` has it.
        gallery: its pictures, or the sentence that says why there are none.
        out: the file; ``report.html`` in the run's folder if None.

    Returns:
        The path of the file.

    Raises:
        ValueError: if ``out`` is a folder, or would lie in a file.
    """
    path = run.folder / "report.html" if out is None else Path(out)
    check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _page(run, gallery))
    return path


def _page(run: Run, gallery: Gallery | str) -> str:
    sections = [_section(name, m, run.report) for name, m in run.report.measures.items()]
    if run.report.comparisons:
        tables = comparison_tables(run.report.comparisons)
        question = "Does one model score higher than another on the same images, map by map?"
        sections.append(_Section("compared", "Models compared", question, tables))
    here = files("infsa_explain.report")
    script = (here / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=PackageLoader("infsa_explain.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": _prose, "cell": _cell}
    page = environment.get_template("page.html.j2").render(
        run=run,
        verdict=judge(run.report),
        sections=sections,
        charts=[chart.data() for section in sections for chart in section.curves],
        styles=styles(_names(run.report, sections)),
        palette=PALETTE,
        gallery=None if isinstance(gallery, str) else gallery,
        no_gallery=gallery if isinstance(gallery, str) else "",
        diagnostics=diagnostics(run.report),
        conditions=_conditions(run.config),
        command=run.config.get("command"),
        source=run.config.get("source"),
        options=json.dumps(run.config["measures"], indent=2),
        css=Markup((here / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return page.lstrip() + "\n"


def _section(name: str, measure: type[Measure], report: Report) -> _Section:
    summaries = report.summaries[name]
    section = _Section(name, measure.title, measure.question, measure.tables(summaries))
    for chart in measure.charts(report.rows[name], summaries):
        kinds = {LineChart: section.curves, Forest: section.forests, Heat: section.heats}
        cast(list[Any], kinds[type(chart)]).append(chart)
    return section


def _names(report: Report, sections: Sequence[_Section]) -> list[str]:
    """Names of methods and of what else is drawn, in the order in which they take colours."""
    rows = (row for rows in report.rows.values() for row in rows)
    methods = [row["method"] for row in rows if "method" in row]
    drawn = [row.name for section in sections for plot in section.forests for row in plot.rows]
    return list(dict.fromkeys([*methods, *drawn]))


def _conditions(config: dict[str, Any]) -> str:
    """How the maps were made, in words."""
    options = next((m for m in config["measures"].values() if "methods" in m), None)
    if options is None:
        return ""
    layer = {"last": "the last layer", "mean": "the mean of all layers"}.get(
        options["layer"], f"layer {options['layer']}"
    )
    head = "mean over heads" if options["head"] is None else f"head {options['head']}"
    gamma = "the models' own γ" if options["gamma"] is None else f"γ {options['gamma']}"
    return f"Maps of {layer}, {head}, {gamma}; class: {options['target']}; seed {options['seed']}"


def _prose(text: str) -> Markup:
    """Escaped text: what stands between backticks as code, minus signs, intervals unbroken."""
    parts = str(escape(text)).split("`")
    parts[::2] = [_unbroken(_minus(part)) for part in parts[::2]]
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return Markup("".join(parts))


class _Cell(NamedTuple):
    """A number of a table; its interval, test or what is excluded; whether chance explains it."""

    value: str
    rest: list[str]
    unsure: bool


def _cell(text: str) -> _Cell:
    """The parts of a table's cell or heading.

    >>> _cell("-4.1 [-7.3, -1.0] p 0.331 d -0.2")
    _Cell(value='−4.1', rest=['[−7.3, −1.0]', 'p 0.331, d −0.2'], unsure=True)
    """
    p = re.search(r"\] p ([\d.]+)", text)
    value, *rest = re.split(r" (?=[\[(×])|(?<=\]) ", _minus(text).replace(" d ", ", d "))
    return _Cell(value, rest, p is not None and float(p[1]) > LEVEL)


def _minus(text: str) -> str:
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def _unbroken(text: str) -> str:
    """Escaped text with intervals and p-values that no line breaks."""
    whole = r"\[[−+\d.]+, [−+\d.]+\]|\bp (?:&lt; )?[\d.]+"
    return re.sub(whole, lambda found: found[0].replace(" ", "\u00a0"), text)
