"""``python -m infsa_explain``."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from .interrupting import INTERRUPTED, ends_when_interrupted

__all__ = ["main"]

#: What typer says about a value that is not among the choices of an option.
NO_CHOICE = re.compile(
    r"Invalid value for '(--.+?)'.*?: (?:Value error, )?('.*') is not one of (.+)\."
)


def main() -> None:
    """Run the command line: exit 0 done, 1 failed, 2 wrong use, 130 interrupted.

    An error is one line that says what is wrong and how to mend it. A warning is one line, too.
    ``--debug`` before the command shows tracebacks, and where warnings come from.
    """
    debug = "--debug" in sys.argv[1:2]
    atexit.register(gc.freeze)  # else the last garbage collection takes a second, over torch
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the locale may lack characters of a table
            stream.reconfigure(errors="backslashreplace")
    try:
        with _warnings_as_lines(debug), ends_when_interrupted():
            _refuse_blank(sys.argv[1:])
            from .cli import command_line

            code = command_line()(standalone_mode=False)
            print(end="", flush=True)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of the output has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        if not sys.argv[1:]:  # without a command typer raises its help
            print(str(getattr(error, "message", error)))
            sys.exit(2)
        print(f"error: {_message(error)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError) or _is_usage(error) else 1)
    if code == INTERRUPTED:  # typer returns this code, too
        print("interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _warnings_as_lines(debug: bool) -> Iterator[None]:
    """Show warnings without their place; those of this package never become errors."""
    from .cli.output import one_line

    formatwarning = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning, module="infsa_(explain|metrics)")
        if not debug:
            warnings.formatwarning = lambda text, *_, **__: f"warning: {one_line(str(text))}\n"
        try:
            yield
        finally:
            warnings.formatwarning = formatwarning


def _refuse_blank(arguments: list[str]) -> None:
    """Refuse an empty value: it often comes from a shell variable that is not set.

    As a path it would be the working folder.
    """
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, equals, value = argument.partition("=")
        if not argument.strip():
            name = before if before.startswith("-") else "an argument"
        elif option.startswith("--") and equals and not value.strip():
            name = option
        else:
            continue
        raise ValueError(f"{name} is empty; give it a value, or leave it out")


def _is_usage(error: Exception) -> bool:
    """Whether the command line itself was wrong; typer brings its own copy of click's errors."""
    return getattr(error, "exit_code", None) == 2


def _message(error: Exception) -> str:
    from .cli.output import one_line

    if _is_usage(error):
        text = one_line(error.format_message())  # type: ignore[attr-defined]
        if choices := NO_CHOICE.fullmatch(text):
            option, value, names = choices.groups()
            return f"{option} must be {' or '.join(names.rsplit(', ', 1))}, got {value}"
        return f"{text} (--help shows the options)"
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return f"{text}: the standard output could not be written"  # other files have a name
    if isinstance(error, (ValueError, OSError)):
        return text
    if isinstance(error, (MemoryError, RuntimeError)):
        from .memory import out_of_memory  # imports torch, which is loaded by now

        if out_of_memory(error):
            return f"out of memory: take fewer or smaller images, or a smaller model ({text})"
    return f"{type(error).__name__}: {text} (--debug shows where)"


if __name__ == "__main__":
    main()
