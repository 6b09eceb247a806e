"""How often 95% intervals cover the true mean, and tests raise false alarms: docs/statistics.md.

Samples of n values are drawn from known distributions, or from the per-image values of a run
(``--run``), whose mean is then the truth. Each sample gives an interval by every method, and a test
of the hypothesis that the mean is what it is, which is true.

Usage: python experiments/coverage.py [--run FOLDER] [--samples 2000]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from infsa_metrics import bootstrap_mean, paired_test
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
SIZES = (20, 50, 200)
RESAMPLES = 999


def distributions() -> dict[str, tuple[Callable[[np.random.Generator, int], Array], float]]:
    """Name → how n values are drawn, and their mean."""
    return {
        "normal": (lambda rng, n: rng.normal(size=n), 0.0),
        "exponential": (lambda rng, n: rng.exponential(size=n), 1.0),
        "lognormal": (lambda rng, n: rng.lognormal(size=n), float(np.exp(0.5))),
        "Student's t, 3 degrees": (lambda rng, n: rng.standard_t(3, size=n), 0.0),
        "Bernoulli 0.98": (lambda rng, n: (rng.random(n) < 0.98).astype(float), 0.98),
    }


def of_run(folder: Path) -> dict[str, Array]:
    """Per-image values of a run: AOC and AP of its first method, and their differences."""
    rows = [json.loads(line) for file in folder.glob("rows.*") for line in file.open()]
    model = rows[0]["model"]

    def values(measure: str, field: str, method: str) -> Array:
        chosen = (
            row[field]
            for row in rows
            if (row["measure"], row["model"], row.get("method")) == (measure, model, method)
            and row.get("order", "morf") == "morf"
        )
        return np.array([np.nan if x is None else x for x in chosen], dtype=np.float64)

    found: dict[str, Array] = {}
    for measure, field, title in (("morf", "aoc", "AOC"), ("boxes", "ap", "AP")):
        methods = dict.fromkeys(r["method"] for r in rows if r["measure"] == measure)
        if not methods:
            continue
        first = next(iter(methods))
        found[title] = values(measure, field, first)
        for control in ("random", "centre"):
            if control in methods:
                difference = found[title] - values(measure, field, control)
                found[f"{title} − {control}"] = difference
    ranks = [r["rank"] for r in rows if r["measure"] == "accuracy" and r["model"] == model]
    for k in (1, 5) if ranks else ():
        found[f"top-{k}"] = np.array([rank < k for rank in ranks], dtype=np.float64)
    return {name: x[~np.isnan(x)] for name, x in found.items()}


def covered(x: Array, mean: float, seed: int) -> list[float]:
    """Whether each interval holds the mean, and whether each test rejects it."""
    share = bool(np.isin(x, (0, 1)).all())
    ours = bootstrap_mean(x, resamples=RESAMPLES, seed=seed, proportion=share)
    if share:  # which is tested by its difference to another share
        low, high = (x.mean(), x.mean()) if np.ptp(x) == 0 else bca_interval(x, seed)
        return [ours.low <= mean <= ours.high, low <= mean <= high, np.nan, np.nan]
    test = paired_test(x, np.full_like(x, mean), resamples=RESAMPLES, seed=seed)
    low, high = bca_interval(x, seed)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (RESAMPLES, len(x)))
    flips = np.abs(signs @ (x - mean)) >= abs((x - mean).sum()) - 1e-12
    return [
        ours.low <= mean <= ours.high,
        low <= mean <= high,
        test.p_value <= 0.05,
        (flips.sum() + 1) / (RESAMPLES + 1) <= 0.05,
    ]


def bca_interval(x: Array, seed: int) -> tuple[float, float]:
    """SciPy's BCa interval of the mean."""
    rng = np.random.default_rng(seed)
    low, high = stats.bootstrap((x,), np.mean, n_resamples=RESAMPLES, rng=rng).confidence_interval
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--samples", type=int, default=2000)
    options = parser.parse_args()
    cases: dict[str, tuple[Any, float]] = dict(distributions())
    for name, population in (of_run(options.run) if options.run else {}).items():
        draw = lambda rng, n, population=population: rng.choice(population, n)  # noqa: E731
        cases[name] = draw, float(population.mean())
    print("| values | n | interval | BCa | test | sign flips |")
    print("| --- | --: | --: | --: | --: | --: |")
    for name, (draw, mean) in cases.items():
        for n in SIZES:
            rng = np.random.default_rng(n)
            results = [covered(draw(rng, n), mean, seed) for seed in range(options.samples)]
            shares = 100 * np.array(results, dtype=np.float64).mean(0)
            cells = " | ".join("—" if np.isnan(s) else f"{s:.1f}" for s in shares)
            print(f"| {name} | {n} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
