"""What the tests share: the folder beside the checkout, photographs, and what to skip."""

from __future__ import annotations

from pathlib import Path

import pytest

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
