"""One run shared among several processes: each takes a part of the images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
from torch import distributed

__all__ = ["Shard", "Share", "share"]

#: A rank may be done this long before the last one.
PATIENCE = timedelta(days=7)


class Shard(NamedTuple):
    """The ``part``-th of ``parts`` parts of a data set, from 1."""

    part: int = 1
    parts: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``"2/4"``.

        Raises:
            ValueError: for anything but i/n with 1 <= i <= n.

        >>> Shard.parse("2/4")
        Shard(part=2, parts=4)
        """
        part, _, parts = text.partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            raise ValueError(f"--shard must be i/n with i from 1 to n, such as 2/4, got {text!r}")
        return cls(int(part), int(parts))

    def of(self, images: int) -> range:
        """The indices of this shard's images: a stretch of the data set, in its order.

        >>> [list(Shard(i, 3).of(5)) for i in (1, 2, 3)]
        [[0], [1, 2], [3, 4]]
        """
        return range((self.part - 1) * images // self.parts, self.part * images // self.parts)

    def __str__(self) -> str:
        return f"{self.part}-of-{self.parts}"


class Share(NamedTuple):
    """A process's part in a run.

    Attributes:
        shard: of the images.
        wait: returns when every process that runs together has called it.
        reports: whether this process says what came out.
    """

    shard: Shard
    wait: Callable[[], None]
    reports: bool


@contextmanager
def share(shard: str | None) -> Iterator[Share]:
    """This process's share: of ``torchrun``'s ranks, of ``--shard i/n``, or everything.

    Under ``torchrun`` ranks meet by gloo, or by nccl where each has a CUDA device.

    Raises:
        ValueError: for a shard that is none, or one beside ``torchrun``.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if distributed.is_torchelastic_launched() else 1
    if ranks == 1:
        yield Share(Shard() if shard is None else Shard.parse(shard), lambda: None, True)
        return
    if shard is not None:
        raise ValueError("--shard is for processes that do not know each other; torchrun has ranks")
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        rank = distributed.get_rank()
        yield Share(Shard(rank + 1, ranks), _meet, rank == 0)
    finally:
        distributed.destroy_process_group()


def _meet() -> None:
    distributed.barrier()
