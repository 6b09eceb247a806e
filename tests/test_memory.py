"""Work is halved when memory runs out, and no item is lost, doubled or moved."""

from __future__ import annotations

import pytest
import torch

from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Morf, measure
from infsa_explain.memory import Halving
from infsa_explain.models.loading import load

CPU = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(CPU),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_parts_are_halved_until_they_fit(error):
    tried = []

    def room_for_three(items):
        tried.append(len(items))
        if len(items) > 3:
            raise error
        return list(items)

    halving = Halving(room_for_three, 16, "things")
    with pytest.warns(UserWarning, match=r"out of memory with \d+ things at a time: going on"):
        parts = list(halving(range(21)))
    assert [item for part in parts for item in part] == list(range(21))
    assert tried == [16, 8, 4, *[2] * 10, 1]
    assert [len(part) for part in halving(range(5))] == [2, 2, 1]  # remembered


def test_what_does_not_fit_alone_is_an_error():
    def no_room(items):
        raise MemoryError("none at all")

    with pytest.warns(UserWarning), pytest.raises(MemoryError, match="none at all"):
        list(Halving(no_room, 2, "things")([1, 2]))


def test_other_errors_are_not_held_for_memory():
    def broken(items):
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        list(Halving(broken, 8, "things")(range(8)))


def test_a_run_out_of_memory_ends_with_the_rows_of_one_that_was_not(monkeypatch):
    model, data = load("infvit_linear_digits"), PhotoDigits("val", 6)
    options = Morf(("visits", "random"), steps=3)
    expected = measure(model, data, options)
    room = model.forward

    def forward(images):
        if len(images) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return room(images)

    monkeypatch.setattr(model, "forward", forward)
    with pytest.warns(UserWarning, match="masked images|images at a time"):
        rows = measure(model, data, options)

    def key(row):
        return row["image"], row["method"], row["order"]

    for a, b in zip(sorted(rows, key=key), sorted(expected, key=key), strict=True):
        assert key(a) == key(b)
        assert a["probabilities"] == pytest.approx(b["probabilities"], abs=2e-6)
