"""Pure InfSA on a CPU: the two passes of :mod:`infsa_explain.attention.tiles` in C.

``cpu.c`` uses each entry of the graph while it is in a register or the first-level cache. It is
for CPUs with AVX2 but not AVX512, on which oneDNN's products are fast enough. The machine's C
compiler builds it for each new width of heads, in less than a second, and nothing stays on the
disk. Without a compiler the tiles are used. The environment variable ``CC`` names the compiler;
set to nothing, it switches the kernels off.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["backward", "forward", "supports"]

LANGUAGE = "C"
FLAGS = ("-O3", "-mavx2", "-mfma", "-fopenmp", "-shared", "-fPIC")


def supports(key_width: int, value_width: int) -> bool:
    """Whether this CPU has AVX2 but not AVX512, and there is a compiler; any width is supported."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2" and bool(compiler())


def compiler() -> list[str]:
    """The command of the C compiler, as arguments; empty if there is none."""
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    installed = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return [installed] if installed else []


@functools.cache
def library(key_width: int, value_width: int) -> ctypes.CDLL:
    """The kernels, compiled for two widths, each a multiple of 16.

    Raises:
        RuntimeError: with the compiler's message, if it fails.
    """
    with (
        as_file(files(__package__) / "cpu.c") as source,
        tempfile.TemporaryDirectory() as folder,
    ):
        built = Path(folder, "kernels.so")
        widths = f"-DD={key_width}", f"-DE={value_width}"
        command = [*compiler(), *FLAGS, *widths, str(source), "-o", str(built)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"{shlex.join(command)}: {ran.stderr.strip()}")
        return ctypes.CDLL(str(built))


def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A v (G, N, e) and ‖A‖_F (G,) of A = relu(q kᵀ); q (G, N, d), k (G, M, d), v (G, M, e)."""
    width = v.shape[2]
    q, k, v = _padded(q), _padded(k), _padded(v)
    product = q.new_zeros(*q.shape[:2], v.shape[2])
    squares = q.new_empty(len(q), dtype=torch.float64)
    _run("forward", (q, _panels(k), v, product, squares), q, k, v)
    return product[..., :width].contiguous(), squares.sqrt().to(q.dtype)


def backward(
    q: Tensor, k: Tensor, v: Tensor, norm: Tensor, g: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; see :mod:`infsa_explain.attention.tiles` for the equations."""
    widths = q.shape[2], k.shape[2], v.shape[2]
    share = torch.where(norm > 0, h / norm, 0)
    q, k, v, g = _padded(q), _padded(k), _padded(v), _padded(g)
    gradients = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    _run("backward", (q, k, _panels(k), _panels(v), g, share, *gradients), q, k, v)
    dq, dk, dv = (x[..., :w].contiguous() for x, w in zip(gradients, widths, strict=True))
    return dq, dk, dv


def _padded(x: Tensor) -> Tensor:
    """x with zeros appended to every vector, up to a multiple of 16."""
    return pad(x, (0, -x.shape[2] % 16)) if x.shape[2] % 16 else x.contiguous()


def _panels(x: Tensor) -> Tensor:
    """(G, M, w) in panels of 16 tokens, (G, ⌈M / 16⌉, w, 16), zeros beyond M."""
    x = pad(x, (0, 0, 0, -x.shape[1] % 16))
    return x.view(len(x), -1, 16, x.shape[2]).mT.contiguous()


def _run(name: str, arguments: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor) -> None:
    """Call a kernel with PyTorch's number of threads."""
    kernel = library(q.shape[2], v.shape[2])[name]
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in arguments)
    sizes = (ctypes.c_long(size) for size in (len(q), q.shape[1], k.shape[1]))
    kernel(*pointers, *sizes, ctypes.c_int(torch.get_num_threads()))
