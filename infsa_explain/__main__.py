"""``python -m infsa_explain``."""

from __future__ import annotations

import sys

import typer

__all__ = ["main"]

INTERRUPTED = 130


def main() -> None:
    """Run the command line: exit 0 done, 1 failed, 2 wrong use, 130 interrupted.

    An error is one line that names the thing and the mend; ``--debug`` before the command shows
    the traceback.
    """
    from .cli import app

    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if "--debug" in sys.argv[1:2]:
            raise
        if not sys.argv[1:]:  # typer's answer to no command is its help
            print(str(getattr(error, "message", error)))
            sys.exit(2)
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError) or _is_usage(error) else 1)
    if code == INTERRUPTED:  # as typer, too, has it
        print("interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _is_usage(error: Exception) -> bool:
    """Whether the command line itself was wrong; typer brings its own copy of click's errors."""
    return getattr(error, "exit_code", None) == 2


def _one_line(error: Exception) -> str:
    if _is_usage(error):
        return f"{error.format_message()} (--help shows the options)"  # type: ignore[attr-defined]
    text = " ".join(str(error).split()) or type(error).__name__
    known = isinstance(error, (ValueError, OSError))
    return text if known else f"{type(error).__name__}: {text} (--debug shows where)"


if __name__ == "__main__":
    main()
