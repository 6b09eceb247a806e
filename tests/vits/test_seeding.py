"""Random numbers of an identity: the same everywhere, and whatever other threads draw."""

from __future__ import annotations

import hashlib
from threading import Thread

import numpy as np
import torch
from timm.models import VisionTransformer

from infsa_explain.models.untraining import untrained
from infsa_explain.vits.seeding import seed_of, seeded


def test_seeds_are_the_first_bytes_of_a_hash():
    for size in (4, 7):
        digest = hashlib.sha256(b"noise for a/b.png").hexdigest()
        assert seed_of("noise for a/b.png", size) == int(digest[: 2 * size], 16)


def test_both_generators_are_seeded_and_restored():
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    with seeded(2**40 + 5):
        inside = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    assert (torch.rand(1), np.random.rand()) == before  # noqa: NPY002
    expected = torch.rand(3, generator=torch.Generator().manual_seed(2**40 + 5))
    assert torch.equal(inside[0], expected)
    np.testing.assert_array_equal(inside[1], np.random.RandomState(5 + 2**40 % 2**32).rand(3))


def test_other_threads_wait():
    """Fresh weights are drawn from the same generator, and must not be mixed in."""
    vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2)
    expected = torch.rand(6, generator=torch.Generator().manual_seed(3))
    thread = Thread(target=untrained, args=(vit,))
    with seeded(3):
        drawn = [torch.rand(3)]
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        drawn.append(torch.rand(3))
    thread.join()
    assert torch.equal(torch.cat(drawn), expected)
