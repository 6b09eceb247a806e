"""Access to Hugging Face's hub, or only to its cache on disk if the hub is unreachable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hub_or_cache"]

#: Seconds to wait for the hub.
PATIENCE = 5


@contextmanager
def hub_or_cache() -> Iterator[bool]:
    """Use only the local cache within this context if the hub is unreachable.

    ``huggingface_hub`` itself would retry for most of a minute before it fails.

    Yields:
        Whether the hub is reachable, through the proxy of the environment if there is one.
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
