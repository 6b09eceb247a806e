"""Text and JSON files of strangers, read with errors that give file and line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["read_json", "read_text"]

#: Files of labels and annotations are read whole, so larger ones are refused.
MAX_BYTES = 1 << 30


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
