"""The C kernels of Pure InfSA against numpy float64, and when they are used."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from infsa_explain.attention import cpu, pure

#: Graphs, queries, keys, width of keys, width of values; blocks are of 6 rows and 16 columns, in
#: 128 columns or, where heads are wide, in 64.
SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 5, 15, 3, 17),
    (3, 6, 16, 16, 16),
    (2, 13, 129, 16, 32),
    (1, 20, 257, 24, 40),
    (2, 30, 130, 64, 64),
]


@pytest.fixture(scope="module", autouse=True)
def can_run():
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("no CPU with AVX2")
    if not cpu.compiler():
        pytest.skip("no C compiler")


@pytest.fixture
def an_avx2_cpu(monkeypatch):
    """A CPU that the kernels are for, whatever this one is, and no memory of an earlier check."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    pure.usable.cache_clear()
    yield
    pure.usable.cache_clear()


def used(*widths):
    return pure._passes(*(torch.zeros(1, 1, width) for width in widths)) is cpu


def inputs(graphs, n, m, d, e):
    generator = torch.Generator().manual_seed(0)
    shapes = (n, d), (m, d), (m, e), (n, e), ()
    return [torch.randn(graphs, *shape, generator=generator) for shape in shapes]


def by_hand(q, k, v, g, h):
    """A v, ‖A‖_F and the gradients of q, k and v in numpy float64."""
    q, k, v, g, h = (x.double().numpy() for x in (q, k, v, g, h))
    graph = np.maximum(q @ k.swapaxes(1, 2), 0)
    norm = np.sqrt((graph**2).sum((1, 2)))
    share = np.divide(h, norm, out=np.zeros_like(h), where=norm > 0)
    towards = np.where(graph > 0, g @ v.swapaxes(1, 2) + share[:, None, None] * graph, 0)
    dq, dk, dv = towards @ k, towards.swapaxes(1, 2) @ q, graph.swapaxes(1, 2) @ g
    return graph @ v, norm, dq, dk, dv


def by_kernels(q, k, v, g, h):
    product, norm = cpu.forward(q, k, v)
    return product, norm, *cpu.backward(q, k, v, norm, g, h)


def relative(found, truth):
    return np.linalg.norm(found.double().numpy() - truth) / max(np.linalg.norm(truth), 1e-300)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients(shape, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    given = inputs(*shape)
    before = [x.clone() for x in given]
    for found, truth in zip(by_kernels(*given), by_hand(*given), strict=True):
        assert found.shape == truth.shape
        assert found.is_contiguous()
        assert relative(found, truth) <= 1e-6
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_large_graphs():
    """Float32 at a size at which one float32 sum over N² terms is off by 1e-4."""
    given = inputs(1, 2500, 4097, 16, 16)
    product, norm, *gradients = zip(by_kernels(*given), by_hand(*given), strict=True)
    assert relative(*norm) <= 1e-7
    assert all(relative(*pair) <= 1e-6 for pair in (product, *gradients))


def test_an_empty_graph():
    q, k, v, g, h = inputs(2, 20, 20, 16, 16)
    q, k = q.abs(), torch.stack([k[0], -k[1].abs()])
    found = by_kernels(q, k, v, g, h)
    assert not any(x[1].any() for x in found)
    assert all(x[0].isfinite().all() and x[0].any() for x in found)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_graph(bad):
    q, k, v, *_ = inputs(2, 20, 20, 16, 16)
    q[1, 3, 0] = bad
    product, norm = cpu.forward(q, k, v)
    assert product[0].isfinite().all()
    assert norm[0].isfinite()
    assert not product[1, 3].isfinite().any()
    assert not norm[1].isfinite()


def test_memory_is_linear_in_the_tokens():
    def peak(tokens):
        given = inputs(1, tokens, tokens, 16, 16)
        with torch.profiler.profile(profile_memory=True) as profile:
            by_kernels(*given)
        events = profile.profiler.kineto_results.events()
        sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
        return max(np.cumsum(sizes))

    assert 0 < peak(1024) <= 2.2 * peak(512)


def test_the_layer_uses_them(an_avx2_cpu, monkeypatch):
    called = []
    forward = cpu.forward
    monkeypatch.setattr(cpu, "forward", lambda *qkv: called.append(1) or forward(*qkv))
    q, k, v, *_ = inputs(2, 9, 9, 5, 5)
    assert used(5, 5)
    called.clear()
    pure.affinity_product(q, k, v)
    assert called == [1]
    pure.affinity_product(q.double(), k.double(), v.double())
    assert called == [1]


def test_a_default_device_changes_nothing(an_avx2_cpu):
    zeros = torch.zeros(1, 1, 16)
    with torch.device("meta"):
        assert pure._passes(zeros, zeros) is cpu


@pytest.mark.parametrize("capability", ["DEFAULT", "AVX512"])
def test_other_cpus_keep_the_tiles(an_avx2_cpu, monkeypatch, capability):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert not used(16, 16)


class TestCompiler:
    @pytest.fixture(autouse=True)
    def anew(self, an_avx2_cpu):
        cpu.library.cache_clear()
        yield
        cpu.library.cache_clear()

    def reason(self):
        """Why the kernels are not used: the words of the warning; none if none came."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not used(16, 16)
        return " ".join(str(warning.message) for warning in caught)

    def test_none(self, monkeypatch):
        monkeypatch.setenv("CC", "")
        assert not self.reason()

    def test_none_on_the_path(self, monkeypatch, tmp_path):
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert not self.reason()

    def test_one_that_is_not_there(self, monkeypatch):
        monkeypatch.setenv("CC", "no-such-compiler")
        assert "no-such-compiler" in self.reason()

    def test_one_that_fails(self, monkeypatch):
        monkeypatch.setenv("CC", f"{sys.executable} -c 'raise SystemExit(\"out of ideas\")'")
        reason = self.reason()
        assert "C kernels of Pure InfSA are not used on cpu" in reason
        assert "out of ideas" in reason

    def test_one_with_options(self, monkeypatch):
        monkeypatch.setenv("CC", f"{cpu.compiler()[0]} -DUNUSED='a b'")
        assert used(16, 16)

    def test_kernels_that_are_wrong(self, monkeypatch):
        forward = cpu.forward
        wrong = lambda *qkv: tuple(1.001 * x for x in forward(*qkv))  # noqa: E731
        monkeypatch.setattr(cpu, "forward", wrong)
        assert "relative error is 1e-03" in self.reason()

    def test_nothing_stays_on_the_disk(self, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert used(16, 16)
        assert not list(tmp_path.iterdir())

    def test_no_warning_of_the_compiler(self, monkeypatch):
        ran = []
        run = subprocess.run
        monkeypatch.setattr(subprocess, "run", lambda *a, **k: ran.append(run(*a, **k)) or ran[-1])
        monkeypatch.setattr(cpu, "FLAGS", ("-Wall", "-Wextra", *cpu.FLAGS))
        assert used(16, 16)
        assert ran[0].stderr == ""
