"""The Triton kernels, in Triton's interpreter on the CPU, against numpy float64.

The interpreter has to be chosen before Triton is imported, so the kernels run in a process of
their own, once for all tests.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds for Linux")

#: Graphs, queries, keys, width of keys, width of values; blocks are of 64 tokens, or of 32.
SHAPES = [(1, 64, 64, 16, 16), (2, 70, 65, 5, 20), (1, 1, 33, 17, 64)]

SCRIPT = """
import sys, warnings
import numpy as np, torch
from infsa_explain.attention import cuda, pure, tiles
from infsa_explain.attention.layers import pure_infsa

given, out = np.load(sys.argv[1]), {}
for case in range(int(given["cases"])):
    q, k, v, g, h = (torch.from_numpy(given[f"{case} {name}"]) for name in "qkvgh")
    product, norm = cuda.forward(q, k, v)
    found = (product, norm, *cuda.backward(q, k, v, norm, g, h))
    out |= {f"{case} {name}": x.numpy() for name, x in zip(["product", "norm", *"qkv"], found)}

cpu = torch.device("cpu")
out["usable"] = pure.usable(cuda, cpu, 16, 16)
out["wide"] = pure.usable(cuda, cpu, 16, 65)
out["chosen"] = pure._passes(q[..., :16], v[..., :16]) is cuda
out["double"] = pure._passes(q.double(), v.double()) is tiles
x = torch.from_numpy(given["x"]).requires_grad_()
pure_infsa(x, x, x, 0.9).square().sum().backward()
out["layer"] = x.grad.numpy()

right = cuda.forward
for name, wrong in (("wrong", lambda *qkv: [1.001 * y for y in right(*qkv)]), ("broken", None)):
    pure.usable.cache_clear()
    cuda.forward = wrong
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out[name] = pure.usable(cuda, cpu, 16, 16)
    out[name + " says"] = " ".join(str(w.message) for w in caught)
np.savez(sys.argv[2], **out)
"""


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    made = []
    for graphs, n, m, d, e in SHAPES:
        shapes = {"q": (n, d), "k": (m, d), "v": (m, e), "g": (n, e), "h": ()}
        made.append({name: rng.standard_normal((graphs, *s)) for name, s in shapes.items()})
    empty = {name: np.abs(array) for name, array in made[0].items()}
    made.append(empty | {"k": -empty["k"]})
    return [{name: array.astype(np.float32) for name, array in case.items()} for case in made]


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).standard_normal((1, 2, 70, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def found(cases, x, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    arrays = {f"{i} {name}": a for i, case in enumerate(cases) for name, a in case.items()}
    np.savez(folder / "in.npz", cases=len(cases), x=x, **arrays)
    command = [sys.executable, "-c", SCRIPT, folder / "in.npz", folder / "out.npz"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    with np.load(folder / "out.npz") as file:
        return dict(file)


def by_hand(q, k, v, g, h):
    """A v, ‖A‖_F and the gradients, in float64."""
    q, k, v, g, h = (x.astype(float) for x in (q, k, v, g, h))
    graph = np.maximum(np.einsum("gid,gjd->gij", q, k), 0)
    norm = np.sqrt((graph**2).sum((1, 2)))
    towards = g @ v.swapaxes(1, 2)
    towards += graph * np.divide(h, norm, out=np.zeros_like(h), where=norm > 0)[:, None, None]
    towards *= graph > 0
    return {
        "product": graph @ v,
        "norm": norm,
        "q": towards @ k,
        "k": towards.swapaxes(1, 2) @ q,
        "v": graph.swapaxes(1, 2) @ g,
    }


@pytest.mark.parametrize("case", range(len(SHAPES) + 1), ids=[*map(str, SHAPES), "empty"])
def test_results_and_gradients(cases, found, case):
    for name, truth in by_hand(**cases[case]).items():
        error = np.linalg.norm(found[f"{case} {name}"] - truth)
        assert error <= 1e-6 * np.linalg.norm(truth), name


def test_pure_infsa_by_the_kernels(found, x):
    """∂ ‖γ Â x‖² / ∂x with q = k = v = x, against float64 autograd of the dense form."""
    import torch

    exact = torch.from_numpy(x).double().requires_grad_()
    graph = torch.relu(exact @ exact.transpose(-2, -1) / 8)
    out = 0.9 * (graph / (torch.linalg.matrix_norm(graph, keepdim=True) + 1e-6)) @ exact
    (truth,) = torch.autograd.grad(out.square().sum(), exact)
    assert np.linalg.norm(found["layer"] - truth.numpy()) <= 1e-6 * truth.norm().item()


def test_when_the_kernels_are_used(found):
    assert found["usable"]
    assert found["chosen"]
    assert found["double"]
    assert not found["wide"]


def test_kernels_that_fail_their_check_are_left_with_a_warning(found):
    assert not found["wrong"]
    assert "their relative error is 1e-03" in str(found["wrong says"])
    assert not found["broken"]
    assert "are not used on cpu: TypeError" in str(found["broken says"])


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("name", ["_forward", "_backward_rows", "_backward_columns"])
def test_the_kernels_compile_for_a_gpu(name, width):
    """To machine code of an H100, which needs no GPU; 64 KiB of shared memory are on every chip."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from infsa_explain.attention import cuda

    kernel = getattr(cuda, name)
    constants = {"D": width, "E": width, "B": 64 if width <= 32 else 32}
    types = {"squares_ptr": "*fp64"} | dict.fromkeys(constants, "constexpr")
    signature = {
        argument: types.get(argument, "*fp32" if argument.endswith("_ptr") else "i32")
        for argument in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"].startswith(b"\x7fELF")
    assert compiled.metadata.shared <= 64 * 1024


@pytest.mark.gpu
def test_on_a_gpu(cases):
    import torch

    from infsa_explain.attention import cuda

    for case in cases:
        q, k, v, g, h = (torch.from_numpy(case[name]).cuda() for name in "qkvgh")
        product, norm = cuda.forward(q, k, v)
        results = (product, norm, *cuda.backward(q, k, v, norm, g, h))
        for result, truth in zip(results, by_hand(**case).values(), strict=True):
            assert np.linalg.norm(result.cpu() - truth) <= 1e-6 * np.linalg.norm(truth)
