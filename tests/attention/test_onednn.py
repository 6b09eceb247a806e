"""Products by oneDNN against numpy float64; PyTorch's own wherever a derivative is asked for."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from infsa_explain.attention import onednn

pytestmark = pytest.mark.usefixtures("onednn_multiplies")


class Operators(TorchDispatchMode):
    """Names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **kwargs or {})


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in ((2, 9, 33), (17, 33), (17,))]


def by_hand(x, weight, bias):
    return torch.from_numpy(x.double().numpy() @ weight.double().numpy().T + bias.double().numpy())


def test_products(given, onednn_multiplies):
    x, weight, bias = given
    truth = by_hand(*given)
    with torch.no_grad(), Operators() as operators:
        found = onednn.projection(x, weight, bias)
        plain = onednn.projection(x, weight)
        positive = onednn.linear(x, weight, bias, then="relu")
        part = onednn.projection(x[:, 2:5], weight, bias)
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=1e-5)
    torch.testing.assert_close(plain.double(), truth - bias, rtol=0, atol=1e-5)
    torch.testing.assert_close(positive.double(), truth.clamp_min(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(part.double(), truth[:, 2:5], rtol=0, atol=1e-5)
    assert sum("mkldnn._linear_pointwise" in name for name in operators.names) == (
        4 if onednn_multiplies else 1
    )
    out = torch.empty(33, 33)
    assert onednn.product(x[0].mT, x[0], out) is out
    squared = x[0].double().mT @ x[0].double()
    torch.testing.assert_close(out.double(), squared, rtol=0, atol=1e-4)


def test_gradients(given):
    """∂/∂W Σ (x Wᵀ + b) g = gᵀ x, and so on."""
    x, weight, bias = (tensor.requires_grad_() for tensor in given)
    g = torch.randn(2, 9, 17)
    found = torch.autograd.grad((onednn.projection(x, weight, bias) * g).sum(), given)
    truth = g @ weight, g.flatten(0, 1).T @ x.flatten(0, 1), g.sum((0, 1))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")  # PyTorch's own decompositions
def test_forward_derivatives(given):
    x, weight, bias = given
    direction = torch.randn_like(x)
    with torch.no_grad(), forward_ad.dual_level():
        out = onednn.projection(forward_ad.make_dual(x, direction), weight, bias)
        out, derivative = forward_ad.unpack_dual(out)
    torch.testing.assert_close(out, linear(x, weight, bias))
    torch.testing.assert_close(derivative, linear(direction, weight))


def test_other_types_and_autocast(given):
    with torch.no_grad():
        for dtype in (torch.float64, torch.bfloat16):
            cast = [tensor.to(dtype) for tensor in given]
            assert torch.equal(onednn.projection(*cast), linear(*cast))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(onednn.projection(*given), linear(*given))
            assert onednn.projection(*given).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="dtype"):
            onednn.projection(given[0], given[1].double(), given[2].double())
