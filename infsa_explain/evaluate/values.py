"""The numbers of a run image by image: their means, intervals and tests.

Every interval and every test of a run comes from here. Images of one cluster are resampled
together; several trainings of a model are a second source of chance. See
:mod:`infsa_metrics.statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from infsa_metrics import MeanInterval, bootstrap_mean, paired_tests
from numpy.typing import NDArray

from .rows import Row

__all__ = ["Difference", "Images", "Seeds", "Values", "differences", "differences_to_controls"]

Key = TypeVar("Key", bound=Hashable)
Array = NDArray[np.float64]
#: Maps that look at nothing, which every method is compared with.
CONTROLS = ("random", "centre")


@dataclass(frozen=True)
class Seeds:
    """Several trainings of one model.

    Attributes:
        count: how many.
        spread: standard deviation of their means; NaN for a single one.
    """

    count: int
    spread: float


@dataclass(frozen=True)
class Values:
    """A number of every image, for every training of a model.

    Attributes:
        matrix: (T, n), NaN where the number is undefined.
        clusters: n names of what images share that are not independent; None for an independent
            image, or for all of them.
    """

    matrix: Array
    clusters: tuple[str | None, ...] | None = None

    @property
    def of_images(self) -> Array:
        """(n,) means over the trainings; NaN where one has no number."""
        means: Array = self.matrix.mean(0)
        return means

    @property
    def seeds(self) -> Seeds:
        """The trainings, and how much their means differ."""
        kept = [numbers[~np.isnan(numbers)] for numbers in self.matrix]
        means = [numbers.mean() if len(numbers) else np.nan for numbers in kept]
        return Seeds(len(means), float(np.std(means, ddof=1)) if len(means) > 1 else np.nan)

    def interval(self, *, proportion: bool = False) -> MeanInterval:
        """The mean with its 95% interval; of a share of images if ``proportion``."""
        return bootstrap_mean(self.matrix, clusters=self.clusters, proportion=proportion)

    def __sub__(self, other: Values) -> Values:
        return Values(self.matrix - other.matrix, self.clusters)


@dataclass(frozen=True)
class Images:
    """The images of one model's rows, in the order in which they first appear.

    Attributes:
        names: of the images.
        trainings: the checkpoints.
        clusters: as of :class:`Values`.
    """

    names: tuple[str, ...]
    trainings: tuple[str, ...]
    clusters: tuple[str | None, ...] | None

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Images:
        """The images that rows are of."""
        clusters: dict[str, str | None] = {}
        trainings: dict[str, None] = {}
        for row in rows:
            clusters[row["image"]] = row.get("cluster")
            trainings[row["checkpoint"]] = None
        names = tuple(clusters.values())
        return cls(tuple(clusters), tuple(trainings), names if any(names) else None)

    def values(self, rows: Iterable[Row], field: Callable[[Row], float | None]) -> Values:
        """A field of rows, image by image: the mean of the rows of an image and a training.

        NaN where there is no row, or the field of one is None.
        """
        rows = list(rows)
        numbers = np.array([field(row) for row in rows], dtype=np.float64)  # None becomes NaN
        return Values(self._mean_by_image(rows, numbers[:, None])[..., 0], self.clusters)

    def mean_curve(
        self, rows: Iterable[Row], field: Callable[[Row], Sequence[float]]
    ) -> tuple[Array, Array, Array]:
        """The mean of a list of S numbers over images, and its pointwise 95% interval, (S,) each.

        The intervals are by Student's t.
        """
        rows = list(rows)
        curves = self._mean_by_image(rows, np.array([field(row) for row in rows], dtype=np.float64))
        points = [
            bootstrap_mean(point, clusters=self.clusters, resamples=0)
            for point in np.moveaxis(curves, -1, 0)
        ]
        mean, low, high = np.array([(p.mean, p.low, p.high) for p in points]).T
        return mean, low, high

    def _mean_by_image(self, rows: Sequence[Row], numbers: Array) -> Array:
        """(R, S) numbers of rows to (T, n, S): the mean of an image's rows, NaN without any."""
        place = {image: i for i, image in enumerate(self.names)}
        training = {checkpoint: i for i, checkpoint in enumerate(self.trainings)}
        size = len(self.names)
        index = [size * training[row["checkpoint"]] + place[row["image"]] for row in rows]
        cells, shape = size * len(self.trainings), (len(self.trainings), size)
        counts = np.bincount(index, minlength=cells)
        with np.errstate(invalid="ignore"):  # 0 / 0 where there is no row
            means = [np.bincount(index, column, cells) / counts for column in numbers.T]
        return np.stack([mean.reshape(shape) for mean in means], axis=-1)


@dataclass(frozen=True)
class Difference:
    """A number of one method minus that of another on the same images.

    Attributes:
        interval: mean difference and its interval, which holds for all of the family together.
        p_value: two-sided, adjusted for the family.
        effect_size: Cohen's d_z, the mean difference in standard deviations of the differences.
    """

    interval: MeanInterval
    p_value: float
    effect_size: float


def differences(pairs: Mapping[Key, tuple[Values, Values]]) -> dict[Key, Difference]:
    """Paired tests of a − b for every pair (a, b) of one family: one model, and one question.

    Args:
        pairs: key → values of the same images in the same order.
    """
    clusters = next((a.clusters for a, _ in pairs.values()), None)
    tests = paired_tests(
        {key: (a.matrix, b.matrix) for key, (a, b) in pairs.items()}, clusters=clusters
    )
    return {
        key: Difference(
            MeanInterval(
                test.difference,
                test.low,
                test.high,
                test.n,
                test.excluded,
                test.units,
                test.trainings,
            ),
            test.p_value,
            test.effect_size,
        )
        for key, test in tests.items()
    }


def differences_to_controls(
    values: Mapping[str, Mapping[str, Values]],
) -> dict[tuple[str, str], dict[str, Difference]]:
    """(model, method) → control → difference, for every method that is no control.

    The methods of one model against one control are one family, whatever other models there are.

    Args:
        values: model → method → a number per image.
    """
    over: dict[tuple[str, str], dict[str, Difference]] = {}
    for model, of_model in values.items():
        for control in CONTROLS:
            if control not in of_model:
                continue
            family = {
                method: (numbers, of_model[control])
                for method, numbers in of_model.items()
                if method not in CONTROLS
            }
            for method, difference in differences(family).items():
                over.setdefault((model, method), {})[control] = difference
    return over
