"""What the tests share: the folder beside the checkout, photographs, and what to skip."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

#: Drawn examples a test, where the test does not say: HYPOTHESIS_PROFILE=nightly draws many.
settings.register_profile("fast", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine lacks the data or the device for."""
    import torch

    lacking = {
        "shared": None if SHARED.is_dir() else "no folder `shared` beside the checkout",
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
    }
    for item in items:
        for marker, reason in lacking.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of photographs and golden numbers; for tests marked ``shared``."""
    return SHARED


@pytest.fixture(scope="session")
def photographs():
    """Three square crops of scikit-learn's sample photographs, (320, 320, 3) uint8."""
    from sklearn.datasets import load_sample_images

    china, flower = load_sample_images().images
    return [china[:320, :320], china[100:420, 300:620], flower[50:370, 100:420]]


@pytest.fixture(params=[True, False], ids=["oneDNN", "PyTorch"])
def onednn_multiplies(request, monkeypatch):
    """Whether products are oneDNN's, on any CPU that PyTorch has it for, faster there or not."""
    import torch

    from infsa_explain.attention import onednn

    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("PyTorch has no oneDNN here")
    monkeypatch.setattr(onednn, "_faster", lambda: request.param)
    return request.param


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""
    from infsa_explain.__main__ import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["infsa-explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run
