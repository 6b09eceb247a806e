"""The registry of measures: what is measured of every image, and how its rows are told.

A measure is one class in one file. Its options are the fields of a frozen dataclass; its rows are
what it says of images. The class methods tell the rows of a whole run: tables, charts, sentences of
the verdict, diagnostics. A measure whose rows have a ``method`` and a number needs none of them: it
names the number in ``field``, and is compared with the controls, tabled and judged as the others
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from infsa_metrics import MeanInterval
from torch import nn

from ..catalogue import MEASURES as BUILT_IN
from ..data.samples import ImageData
from ..drawing.charts import Forest, Heat, LineChart
from .findings import Score, maps_text
from .rows import Row
from .tables import (
    CONTROLS,
    FAMILY,
    Table,
    by_method,
    count_cell,
    difference_cell,
    interval_cell,
    sampling_note,
)
from .values import Difference, Images, Seeds, Values, differences_to_controls

if TYPE_CHECKING:
    from .batches import Batch

__all__ = [
    "FieldSummary",
    "Measure",
    "ModelValues",
    "measure_class",
    "measure_names",
    "option",
    "register_measure",
]

Chart = LineChart | Forest | Heat
#: The images of a model, and numbers of them by method; "" for numbers of the model itself.
ModelValues = tuple[Images, dict[str, Values]]


@dataclass(frozen=True)
class FieldSummary:
    """One method on one model: the mean of a measure's field over images.

    Attributes:
        value: mean and interval.
        over: control → :class:`Difference` to that control on the same images, positive where the
            method's number is larger; empty for the controls.
        seeds: the number of checkpoints, and how much their means differ.
    """

    model: str
    method: str
    value: MeanInterval
    over: dict[str, Difference]
    seeds: Seeds


class Measure:
    """A measure; subclass it as a frozen dataclass and decorate it with :func:`register_measure`.

    Class attributes:
        name: in rows, summaries and on the command line.
        title: heading of its section of the page.
        question: what it asks, below that heading.
        by_default: whether ``evaluate`` measures it where ``--metrics`` does not say.
        command: whether the command line has a command of its name; ``evaluate`` has it anyway.
        field: the number of a row that is summarised, compared with the controls and ranked by.
        heading: what tables and sentences call that number.
        higher_is_better: whether more of it is better.
        scale, spec: how it is written: ``format(scale * number, spec)``.
        judged: whether the verdict compares its maps with the controls.
        phrase: how the headline of the verdict names it, such as "by deletion".
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str] = ""
    by_default: ClassVar[bool] = False
    command: ClassVar[bool] = False
    field: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    scale: ClassVar[float] = 100
    spec: ClassVar[str] = ".1f"
    judged: ClassVar[bool] = True
    phrase: ClassVar[str] = ""

    # ------------------------------------------------------------------ measuring

    @property
    def needs_labels(self) -> bool:
        """Whether images' labels must be those of the model's outputs; else they may be None."""
        return False

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the options will not do for a model."""

    def check_data(self, data: ImageData) -> None:
        """Raise a ValueError if the images lack what is measured, without decoding any."""

    def rows(self, batch: Batch) -> Iterable[Row]:
        """Rows of a batch, each with its ``image``."""
        raise NotImplementedError

    # ------------------------------------------------------------------ telling the rows of a run

    @classmethod
    def summarise(cls, rows: Sequence[Row]) -> Any:
        """Rows to dataclasses: a list of them, or lists by name. Here: :class:`FieldSummary`."""
        groups = by_method(rows)
        values = {
            model: {
                method: images.values(of_method, cls.value_of)
                for method, of_method in methods.items()
            }
            for model, (images, methods) in groups.items()
        }
        over = differences_to_controls(values)
        return [
            FieldSummary(
                model,
                method,
                numbers.interval(),
                over.get((model, method), {}),
                numbers.seeds,
            )
            for model, of_model in values.items()
            for method, numbers in of_model.items()
        ]

    @classmethod
    def value_of(cls, row: Row) -> float | None:
        """The number of a row."""
        number: float | None = row[cls.field]
        return number

    @classmethod
    def tables(cls, summaries: Any) -> list[Table]:
        """Tables of the summaries."""
        arrow = "↑" if cls.higher_is_better else "↓"
        over = (f"over {control} [95%]" for control in CONTROLS)
        headings = ("model", "method", f"{cls.heading} {arrow} [95%]", *over, "n")
        cells = [
            (
                s.model,
                s.method,
                interval_cell(s.value, cls.scale, cls.spec),
                *(
                    difference_cell(s.over.get(control), cls.scale, f"+{cls.spec}")
                    for control in CONTROLS
                ),
                count_cell(s.value, s.seeds, cls.scale, cls.spec),
            )
            for s in summaries
        ]
        percent = "; percent" if cls.scale == 100 else ""
        note = f"{sampling_note(s.value for s in summaries)} {FAMILY}"
        return [Table(f"{cls.title.lower()}{percent}", headings, cells, note)]

    @classmethod
    def charts(cls, rows: Sequence[Row], summaries: Any) -> list[Chart]:
        """Charts of the page."""
        return []

    @classmethod
    def save(cls, folder: Path, rows: Sequence[Row]) -> None:
        """Write pictures and further files into a run folder."""

    @classmethod
    def fault(cls, summaries: Any) -> str:
        """Why no image has a value, and what to do; empty where some image has one."""
        return ""

    @classmethod
    def ranked_rows(cls, rows: Sequence[Row]) -> list[Row]:
        """The rows whose ``field`` ranks images, one an image, method and checkpoint."""
        return list(rows)

    @classmethod
    def scores(cls, summaries: Any) -> list[Score]:
        """What the verdict compares with the controls; nothing where no map is scored."""
        if not (cls.field and cls.judged):
            return []
        return [Score(s.model, s.method, s.value, s.over, cls.higher_is_better) for s in summaries]

    @classmethod
    def quantities(cls, rows: Sequence[Row]) -> dict[str, dict[str, ModelValues]]:
        """What models may be compared by: heading → model → its values by image and method.

        Here: the field, of the maps that are no controls, if the verdict judges them.
        """
        if not (cls.field and cls.judged):
            return {}
        return {cls.heading: maps_of_models(rows, cls.value_of)}

    @classmethod
    def findings(cls, rows: Sequence[Row], summaries: Any) -> list[str]:
        """Paragraphs of the verdict, one for every model."""
        by_model: dict[str, list[Score]] = {}
        for score in cls.scores(summaries):
            by_model.setdefault(score.model, []).append(score)
        return [maps_text(scores, cls.heading, cls.scale, cls.spec) for scores in by_model.values()]

    @classmethod
    def headline(cls, rows: Sequence[Row], summaries: Any) -> str:
        """A sentence for the top of the verdict of a run that compares no map with a control."""
        return ""

    @classmethod
    def cautions(cls, rows: Sequence[Row]) -> Iterator[str]:
        """What limits its findings, a sentence each."""
        yield from ()

    @classmethod
    def diagnostics(cls, summaries: Any) -> dict[str, dict[str, str]]:
        """What may be wrong with its numbers: what is watched → model → a few words."""
        return {}


def option(
    default: Any, help: str, *, flag: str = "", parse: Callable[[str], Any] | None = None
) -> Any:
    """A field of a measure that is an option of its command, and of ``evaluate``.

    Fields of :class:`MapOptions` are options without it.

    Args:
        default: its default.
        help: its help text.
        flag: its spelling; by default the field's name, such as ``--most-patches``.
        parse: makes a value from text; not needed for a bool, int, float, str, Path, or a Literal
            of strings, which lists the choices.

    Returns:
        A dataclass field.

    >>> from dataclasses import fields
    >>> @dataclass(frozen=True)
    ... class Peak(Measure):
    ...     patches: int = option(1, "Patches that make the peak.")
    >>> Peak().patches, fields(Peak)[0].metadata["help"]
    (1, 'Patches that make the peak.')
    """
    return field(default=default, metadata={"help": help, "flag": flag, "parse": parse})


def maps_of_models(
    rows: Iterable[Row], field: Callable[[Row], float | None]
) -> dict[str, ModelValues]:
    """model → its images, and method → a field of them, for the maps that look at something."""
    return {
        model: (
            images,
            {
                method: images.values(of_method, field)
                for method, of_method in methods.items()
                if method not in CONTROLS
            },
        )
        for model, (images, methods) in by_method(rows).items()
    }


MEASURES: dict[str, type[Measure]] = {}
AnyMeasure = TypeVar("AnyMeasure", bound=type[Measure])


def register_measure(measure: AnyMeasure) -> AnyMeasure:
    """Register a measure by its ``name``; a decorator of the class.

    Raises:
        ValueError: if the name is taken by another class.
    """
    registered = MEASURES.get(measure.name)
    taken = measure.name in BUILT_IN and not measure.__module__.startswith(f"{__package__}.")
    if taken or (registered is not None and registered.__qualname__ != measure.__qualname__):
        raise ValueError(f"name must be new, got {measure.name!r}, which is registered already")
    MEASURES[measure.name] = measure
    return measure


def measure_names() -> list[str]:
    """Names of all measures, the built-in ones first."""
    return list(dict.fromkeys([*BUILT_IN, *MEASURES]))


def measure_class(name: str) -> type[Measure]:
    """The measure of a name.

    Raises:
        ValueError: if there is none.
    """
    if name not in MEASURES and name in BUILT_IN:
        import_module(f".{BUILT_IN[name]}", __package__)
    if name not in MEASURES:
        raise ValueError(
            f"unknown measure {name!r}; one of {', '.join(measure_names())}; a measure of your own "
            "is known once the module that registers it is imported"
        )
    return MEASURES[name]
