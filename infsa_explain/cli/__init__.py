"""The command line: parses, calls, prints. Heavy imports wait until a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from .benchmarking import bench
from .listing import methods, models
from .looking import map_images
from .measuring import accuracy, align, boxes, evaluate, morf, sanity
from .reporting import gallery, report
from .training import train

__all__ = ["app"]

app = typer.Typer(
    name="infsa-explain",
    help="Where does a Vision Transformer look, and is that attention any good?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Where does a Vision Transformer look, and is that attention any good?"""


app.command("map")(map_images)
for command in (
    morf,
    boxes,
    align,
    sanity,
    evaluate,
    accuracy,
    report,
    gallery,
    train,
    bench,
    models,
    methods,
):
    app.command()(command)
