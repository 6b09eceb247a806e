"""Files: atomic writes, and readers of text and JSON whose errors name the file and the line."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "append_alone",
    "check_file",
    "check_folder",
    "make_folder",
    "naming",
    "read_json",
    "read_text",
    "replacing",
    "write_text",
]

#: Largest file that is read whole into memory, in bytes.
MAX_BYTES = 1 << 30
#: Error numbers for a full disk, a full quota, and a file that is too large.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: A disk with fewer free bytes counts as full when a library does not report the reason.
MIN_FREE_BYTES = 2**16


@contextmanager
def naming(
    path: str | os.PathLike[str], advice: str = "free some space, or write elsewhere"
) -> Iterator[None]:
    """Add the path to errors that occur while a file is written, and advice if the disk is full.

    Args:
        path: the file that is written.
        advice: what the user can do about a full disk.

    Raises:
        OSError: replaces an OSError without a path, and any library's error on a full disk.
    """
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in FULL and not isinstance(error, ValueError):
            # NumPy and PyTorch do not report a full disk. safetensors does, but only in its text.
            reported = os.strerror(errno.ENOSPC) in str(error)
            number = errno.ENOSPC if reported or _is_full(Path(path)) else number
        if number in FULL:
            raise OSError(number, f"{os.strerror(number)}: {advice}", str(path)) from error
        if isinstance(error, OSError) and error.filename is None:
            reason = error.strerror or str(error) or type(error).__name__
            raise OSError(error.errno or errno.EIO, reason, str(path)) from error
        raise


def _is_full(path: Path) -> bool:
    """Whether the disk of a file's folder has almost no free space."""
    try:
        return shutil.disk_usage(path.parent).free < MIN_FREE_BYTES
    except OSError:  # the folder does not exist
        return False


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, then rename it to ``path``.

    A reader of ``path`` sees either the old content or all of the new content, even after a kill,
    a power cut or on a full disk. After an error ``path`` is unchanged, and the error names it.

    Args:
        path: the file to create or replace.

    Yields:
        A temporary path in the same folder, with the same suffix, which the caller must write.

    Raises:
        OSError: as :func:`naming`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "a.txt")) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    final = Path(path)
    # The random part separates processes that write the same file. Libraries read the suffix.
    temporary = final.with_name(f".{secrets.token_hex(4)}.tmp{final.suffix}")
    try:
        with naming(final):
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create an output folder, with its parents, unless it exists.

    Raises:
        ValueError: as :func:`check_folder`.
    """
    check_folder(path)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_folder(path: str | os.PathLike[str]) -> None:
    """Check the path of an output folder before any work is done; nothing is created.

    Pass the path as the caller gave it: ``Path("")`` is the current folder.

    Raises:
        ValueError: if the path is empty, or it or one of its parents is a file.

    >>> check_folder("")
    Traceback (most recent call last):
    ValueError: out must be the path of a folder, got an empty path; '.' is the current folder
    """
    if not os.fspath(path).strip():
        raise ValueError(
            "out must be the path of a folder, got an empty path; '.' is the current folder"
        )
    for place in (Path(path), *Path(path).parents):
        if place.exists() or place.is_symlink():
            if not place.is_dir():
                raise ValueError(f"{place} is a file; --out needs a folder")
            return


def check_file(path: str | os.PathLike[str]) -> None:
    """Check the path of an output file before any work is done; nothing is created.

    Raises:
        ValueError: if the path is empty or a folder, or one of its parents is a file.
    """
    if not os.fspath(path).strip():
        raise ValueError("out must be the path of a file, got an empty path")
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder; --out needs the name of a file")
    check_folder(Path(path).parent)


def append_alone(path: Path) -> BinaryIO:
    """Open a file for appending, with an exclusive lock until it is closed.

    Raises:
        ValueError: if another process holds the lock.
    """
    file = path.open("ab")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"another process is writing to {path}; wait for its end") from None
    except OSError:
        pass  # the file system has no locks
    return file


def read_text(file: Path) -> str:
    """Read a text file in UTF-8; a byte order mark is removed, line ends are kept.

    Raises:
        ValueError: if the file cannot be read, is larger than 1 GiB, or is not UTF-8.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{str(file)!r} is larger than {MAX_BYTES} bytes; split it")
        content = file.read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{str(file)!r}, line {line}: not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"{str(file)!r} cannot be read: {error.strerror}") from None


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: if the file is not JSON, an object has a key twice, or as :func:`read_text`.
    """
    text = read_text(file)
    try:
        return json.loads(text, object_pairs_hook=_unambiguous)
    except json.JSONDecodeError as error:
        raise ValueError(f"{str(file)!r}, line {error.lineno}: not JSON, {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number is too long, or lists are too deep
        raise ValueError(f"{str(file)!r} is not a readable JSON: {error}") from None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict. A repeated key is refused, because one value would be lost."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((key, count),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {key!r:.40} {count} times")
    return content
