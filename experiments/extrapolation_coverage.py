"""How often the 95% intervals of extrapolated times and ratios cover the truth: ``docs/speed.md``.

Times follow a N + b N² with normal relative errors, at the sizes that ``bench`` measures. One
mechanism has a constant overhead as well, which the fit has not. Three things are looked for in the
intervals at 4096² and 9216²: the time itself, the result of one measurement there, and the ratio of
the time of fused softmax to it.

Usage: python experiments/extrapolation_coverage.py [--simulations 2000]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median

import numpy as np

from infsa_explain.bench import Estimate, extrapolate, ratio

Coefficients = tuple[float, float, float]
#: Mechanism → seconds for an image, for each token, and for each pair of tokens.
MECHANISMS: dict[str, Coefficients] = {
    "linear": (0.0, 1.3e-3, 0.0),
    "quadratic": (0.0, 0.0, 5e-7),
    "mixed": (0.0, 1.75e-3, 5e-7),
    "mixed, with 60 ms overhead": (0.06, 1.75e-3, 5e-7),
    "linear, most of it overhead": (0.01, 1e-6, 0.0),
    "mixed, most of it overhead": (0.01, 1e-6, 1e-9),
}
FUSED = "mixed"
#: Sides of the images that are measured. Halved sizes of 9216 are measured where it is too slow.
SIDES = ((224, 512, 1024), (224, 512, 1024, 2048), (224, 512, 1024, 1152, 2048, 2304))
TARGETS = (4096, 9216)
ERRORS = (0.03, 0.08)


@dataclass(frozen=True)
class Coverage:
    """Shares of intervals that cover, and the median of the interval's upper end over its lower.

    Attributes:
        mechanism, sides, target, error: what was simulated.
        time, measurement, ratio: shares, from 0 to 1.
        width: the median.
    """

    mechanism: str
    sides: tuple[int, ...]
    target: int
    error: float
    time: float
    measurement: float
    ratio: float
    width: float


def tokens_of(side: int) -> int:
    """Number of tokens of a square image, with the class token."""
    return (side // 16) ** 2 + 1


def coverage(simulations: int, seed: int = 0) -> list[Coverage]:
    """Coverage for every mechanism, list of sizes, target and error."""
    rng = np.random.default_rng(seed)
    return [
        _coverage(name, sides, target, error, simulations, rng)
        for name in MECHANISMS
        for sides in SIDES
        for target in TARGETS
        for error in ERRORS
    ]


def _coverage(
    name: str,
    sides: tuple[int, ...],
    target: int,
    error: float,
    simulations: int,
    rng: np.random.Generator,
) -> Coverage:
    tokens = tokens_of(target)
    truth, fused_truth = _time(MECHANISMS[name], tokens), _time(MECHANISMS[FUSED], tokens)
    hits, widths = np.zeros(3), []
    for _ in range(simulations):
        seconds = _estimate(MECHANISMS[name], sides, tokens, error, rng)
        speed = ratio(_estimate(MECHANISMS[FUSED], sides, tokens, error, rng), seconds)
        measured = truth * (1 + error * rng.standard_normal())
        pairs = ((seconds, truth), (seconds, measured), (speed, fused_truth / truth))
        hits += [interval.low <= value <= interval.high for interval, value in pairs]
        widths.append(seconds.high / seconds.low)
    time, measurement, of_ratio = (hits / simulations).tolist()
    return Coverage(name, sides, target, error, time, measurement, of_ratio, median(widths))


def _time(coefficients: Coefficients, tokens: int) -> float:
    constant, linear, quadratic = coefficients
    return constant + linear * tokens + quadratic * tokens**2


def _estimate(
    coefficients: Coefficients,
    sides: tuple[int, ...],
    tokens: int,
    error: float,
    rng: np.random.Generator,
) -> Estimate:
    """Extrapolate simulated measurements."""
    times = {
        n: _time(coefficients, n) * (1 + error * rng.standard_normal())
        for n in map(tokens_of, sides)
    }
    estimate = extrapolate(times, tokens)
    if estimate is None:
        raise ValueError(f"sides must be two or more, got {sides}")
    return estimate


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulations", type=int, default=2000)
    simulations = parser.parse_args().simulations
    print("| mechanism | measured | at | error | time | measurement | ratio | width |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    for row in coverage(simulations):
        shares = " | ".join(f"{share:.1%}" for share in (row.time, row.measurement, row.ratio))
        sides = ", ".join(map(str, row.sides))
        print(
            f"| {row.mechanism} | {sides} | {row.target}² | {row.error:.0%} | {shares} | "
            f"{row.width:.2f} |"
        )


if __name__ == "__main__":
    main()
