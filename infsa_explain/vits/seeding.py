"""Random numbers that an identity or a seed decides, whatever else draws at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

__all__ = ["seed_of", "seeded"]

#: torch's and NumPy's global generators are shared by all threads.
_LOCK = RLock()


def seed_of(text: str, size: int) -> int:
    """A seed of ``size`` bytes from a text, the same on every machine.

    >>> seed_of("noise for 3", 4)
    3951076704
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch (CPU) and NumPy, and restore their states afterwards.

    One thread at a time is in this context.
    """
    with _LOCK, torch.random.fork_rng(devices=[]):
        state = np.random.get_state()  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
