"""Files that are written whole or not at all, or by one process alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

__all__ = ["append_alone", "replacing", "write_text"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``, to be written, that takes its place at the end.

    Whoever opens ``path`` finds either what was there before or all of what is written, also after
    a kill, a power cut or on a full disk. After an error ``path`` is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "a.txt")) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    final = Path(path)
    # Several processes may write the same file; its ending tells libraries the format.
    temporary = final.with_name(f".{secrets.token_hex(4)}.tmp{final.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text in UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_alone(path: Path) -> BinaryIO:
    """Open a file to append to; until it is closed no other process may.

    Raises:
        ValueError: if another process has it open like this.
    """
    file = path.open("ab")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"another process is writing to {path}; wait for its end") from None
    except OSError:
        pass  # a file system without locks
    return file
