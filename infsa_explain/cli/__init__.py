"""The command line: parses, calls, prints. Heavy imports wait until a command runs.

May import: every room.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .benchmarking import bench
from .listing import methods, models
from .looking import map_images
from .measuring import measuring_commands
from .options import command_function, options_of
from .output import one_line
from .reporting import compare, gallery, report
from .training import train

__all__ = ["command_line", "import_extensions"]

#: Commands beside those that measure.
OTHERS: dict[str, Callable[..., None]] = {
    "map": map_images,
    "report": report,
    "compare": compare,
    "gallery": gallery,
    "train": train,
    "bench": bench,
    "models": models,
    "methods": methods,
}
#: In ``--help``.
ORDER = ("map", "morf", "boxes", "align", "sanity", "evaluate", "accuracy")


class Command(TyperCommand):
    """A command with its options under headings, each of which may be given once.

    Of an option of one value that is given twice the last would count, and the others be dropped
    without a word.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer has it, after the check."""
        used: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
        for option in used:
            single = not (getattr(option, "multiple", True) or getattr(option, "is_flag", True))
            if single and used.count(option) > 1:
                ctx.fail(f"{option.opts[0]} takes one value, and is given {used.count(option)}")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options for ``--help``, by heading."""
        panels: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            panel = getattr(parameter, "rich_help_panel", None) or "Other"
            panels.setdefault(panel, []).append(parameter.get_help_record(ctx))
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


def command_line() -> typer.Typer:
    """The commands, with those of the measures that are registered by now."""
    import_extensions()
    app = typer.Typer(
        name="infsa-explain",
        help="Where does a Vision Transformer look, and is that attention any good?",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(common)
    functions = measuring_commands(taken=OTHERS)
    for name, function in OTHERS.items():
        options = options_of(name, inspect.signature(function).parameters)
        functions[name] = command_function(function, options, function.__doc__ or "")
    for name in dict.fromkeys([*ORDER, *functions]):
        app.command(name, cls=Command)(functions[name])
    return app


def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Where does a Vision Transformer look, and is that attention any good?"""


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
