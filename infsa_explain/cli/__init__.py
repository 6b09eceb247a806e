"""The command line: parses, calls, prints. Heavy imports wait until a command runs.

May import: every room.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .benchmarking import bench
from .listing import methods, models
from .looking import map_images
from .measuring import COMMANDS, measuring_command
from .output import one_line
from .reporting import gallery, report
from .training import train

__all__ = ["app"]


class OneValue(TyperCommand):
    """A command that refuses an option of one value where it is given twice.

    The last one would count, and the others be dropped without a word.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer has it, after the check."""
        given: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
        for option in given:
            single = not (getattr(option, "multiple", True) or getattr(option, "is_flag", True))
            if single and given.count(option) > 1:
                ctx.fail(f"{option.opts[0]} takes one value, and is given {given.count(option)}")
        return super().parse_args(ctx, args)


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
    import_extensions()


def import_extensions() -> None:
    """Import the modules that packages advertise in the entry point group ``infsa_explain``.

    They register measures, methods or model families. One that fails is left out with a warning.
    """
    for entry in entry_points(group="infsa_explain"):
        try:
            entry.load()
        except Exception as error:  # whatever another's module raises
            reason = one_line(f"{type(error).__name__}: {error}")
            print(f"warning: the extension {entry.name!r} is left out: {reason}", file=sys.stderr)


app.command("map", cls=OneValue)(map_images)
for name in COMMANDS:
    app.command(name, cls=OneValue)(measuring_command(name))
for command in (
    report,
    gallery,
    train,
    bench,
    models,
    methods,
):
    app.command(cls=OneValue)(command)
