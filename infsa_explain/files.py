"""Files: written whole or not at all; text and JSON read with errors that name the place."""

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

#: Files of labels and annotations are read whole, so larger ones are refused.
MAX_BYTES = 1 << 30
#: What the system says of a full disk, a full quota, and a file that is too large.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Free bytes below which a disk is taken for full, where a library does not say why it failed.
LITTLE = 2**16


@contextmanager
def naming(
    path: str | os.PathLike[str], advice: str = "free some space, or write elsewhere"
) -> Iterator[None]:
    """Say of an error in writing a file which file it is, and of a full disk what to do.

    Raises:
        OSError: with the path, in place of one without it, or of another library's error where
            the disk is full.
    """
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in FULL and not isinstance(error, ValueError):
            # NumPy and PyTorch do not say so; safetensors does in its text, and has tidied up.
            told = os.strerror(errno.ENOSPC) in str(error)
            number = errno.ENOSPC if told or _is_full(Path(path)) else number
        if number in FULL:
            raise OSError(number, f"{os.strerror(number)}: {advice}", str(path)) from error
        if isinstance(error, OSError) and error.filename is None:
            reason = error.strerror or str(error) or type(error).__name__
            raise OSError(error.errno or errno.EIO, reason, str(path)) from error
        raise


def _is_full(path: Path) -> bool:
    """Whether the disk that a file lies on, or would lie on, has next to no space left."""
    try:
        return shutil.disk_usage(path.parent).free < LITTLE
    except OSError:  # no such folder
        return False


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``, to be written, that takes its place at the end.

    Whoever opens ``path`` finds either what was there before or all of what is written, also after
    a kill, a power cut or on a full disk. After an error ``path`` is as it was, and the error names
    it.

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
        with naming(final):
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


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder that --out names, made if need be.

    Raises:
        ValueError: if it is a file, or would lie in one.
    """
    folder = Path(path)
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise a ValueError if a path that is to be a folder is a file, or would lie in one."""
    for place in (Path(path), *Path(path).parents):
        if place.exists() or place.is_symlink():
            if not place.is_dir():
                raise ValueError(f"{place} is a file; --out needs a folder")
            return


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise a ValueError if a path that is to be a file is a folder, or would lie in a file."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder; --out needs the name of a file")
    check_folder(Path(path).parent)


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


def read_text(file: Path) -> str:
    """Text of a file in UTF-8, with a byte order mark or without; line ends as they are.

    Raises:
        ValueError: it cannot be read, has more than 1 GiB, or is not UTF-8.
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
    """Content of a JSON file.

    Raises:
        ValueError: it is not JSON, has a key twice in one object, or as :func:`read_text`.
    """
    text = read_text(file)
    try:
        return json.loads(text, object_pairs_hook=_unambiguous)
    except json.JSONDecodeError as error:
        raise ValueError(f"{str(file)!r}, line {error.lineno}: no JSON, {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers too long, lists too deep
        raise ValueError(f"{str(file)!r} is no JSON that can be read: {error}") from None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of a key that is there twice one value would be lost."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((key, count),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {key!r:.40} {count} times")
    return content
