"""Hugging Face's hub, where it can be reached, and its cache on disk where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hub_or_cache"]

#: Seconds until the hub counts as out of reach.
PATIENCE = 5


@contextmanager
def hub_or_cache() -> Iterator[bool]:
    """Within it, what is asked of the hub is looked for in its cache alone if there is no network.

    ``huggingface_hub`` would try again for most of a minute before it says so.

    Yields:
        Whether the hub can be reached, by the proxy that the environment names, if any.
    """
    from huggingface_hub import constants, get_session

    offline = constants.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # of requests or of httpx, by the release
        constants.HF_HUB_OFFLINE = True
    try:
        yield not constants.HF_HUB_OFFLINE
    finally:
        constants.HF_HUB_OFFLINE = offline
