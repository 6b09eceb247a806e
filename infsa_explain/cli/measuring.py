"""Commands that measure: a measure's own, and ``evaluate`` for several at once.

The commands of the measures that come with the package are rows of ``COMMANDS``, so that ``--help``
imports no measure. Those of other measures are built from the fields of their classes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_type_hints

from ..catalogue import MEASURES
from .options import Option, command_function, flags_of, is_readable, options_of
from .output import one_line
from .running import Saving, run
from .values import Source, load_models

if TYPE_CHECKING:
    from ..evaluate import Measure

__all__ = ["COMMANDS", "measuring_commands", "options_of_measure"]

SOURCE = ("model", "checkpoint", "data", "split", "label_map", "labels", "limit")
MAPS = ("methods", "layer", "head", "gamma", "gamma_rho", "visits_start", "target")
DELETION = ("output", "fill", "steps", "floor", "normalise")
SAVING = ("out", "force", "resume", "strict", "shard", "as_json")
#: Options that mean the same in every measure with a field of that name.
SHARED = (*MAPS, *DELETION, "boxes", "batch_size", "amp", "seed")


class Command(NamedTuple):
    """A measuring command.

    Attributes:
        help: its help; the first sentence says what it does.
        options: names of its options, in the order of ``--help``.
    """

    help: str
    options: tuple[str, ...]


#: Commands of the measures that come with the package, and ``evaluate``, by name.
COMMANDS: dict[str, Command] = {
    "morf": Command(
        """Remove patches by relevance: deletion curves and MoRF-AOC.

        The most relevant patches are removed first, and the probability of the class is followed.

        Example: infsa-explain morf --model vit_softmax_digits --methods all --out runs/softmax
        """,
        (*SOURCE, *MAPS, *DELETION, "batch_size", "device", "amp", "seed", *SAVING),
    ),
    "boxes": Command(
        """Compare maps with the objects' boxes: PR-AUC and its relatives.

        Example: infsa-explain boxes --methods all --limit 500 --out runs/boxes
        """,
        (*SOURCE, *MAPS, "boxes", "tolerance", "device", "seed", *SAVING),
    ),
    "align": Command(
        """Compare Linear-InfSA's weights with the Perron vector.

        The Perron vector of the token graph is what the weights stand for. Controls are measured
        beside them: in-degree, the mean query, the constant vector, and the untrained model.

        Example: infsa-explain align --model infvit_linear_photos --data FOLDER --steps 2,4,8
        """,
        ("model", "checkpoint", "control", "size", "data", "split", "limit", "side", "layers")
        + ("steps", "gamma", "images_a_pass", "device", "seed", *SAVING),
    ),
    "sanity": Command(
        """Check maps against random weights, noise and one another.

        Do maps depend on what the model learnt? Do they hold still under noise? Do methods agree?

        Example: infsa-explain sanity --model vit_softmax_digits --methods all --out runs/sanity
        """,
        (*SOURCE, *MAPS, "noise", "draws", "device", "seed", *SAVING),
    ),
    "evaluate": Command(
        """Measure a model's attention by several measures in one run.

        Example: infsa-explain evaluate --model infvit_linear_digits --model vit_softmax_digits
        --methods all --limit 500 --out runs/twins
        """,
        (*SOURCE, "metrics", *MAPS, *DELETION, "boxes")
        + ("batch_size", "device", "amp", "seed", *SAVING),
    ),
    "accuracy": Command(
        """Classify images: top-1 and top-5 accuracy.

        Example: infsa-explain accuracy --model vit_base_patch16_224 --data V2
        --label-map imagenet-1k
        """,
        (*SOURCE, "images_a_pass", "device", "amp", "seed", *SAVING),
    ),
}


def measuring_commands(taken: Collection[str] = ()) -> dict[str, Callable[..., None]]:
    """The functions of the measuring commands by name, for typer.

    A registered measure whose options cannot be read is left out with a warning.

    Args:
        taken: names of other commands, which a measure's own command cannot have.
    """
    options = {name: options_of(name, command.options) for name, command in COMMANDS.items()}
    texts = {name: command.help for name, command in COMMANDS.items()}
    registered = registered_measures()
    for name, measure in registered.items():
        try:
            if measure.command and name in (*taken, *COMMANDS):
                raise ValueError("there is another command of that name")
            of_measure = options_of_measure(measure)
        except (NameError, TypeError, ValueError) as error:
            reason = one_line(str(error))
            print(f"warning: the measure {name!r} gets no options: {reason}", file=sys.stderr)
            continue
        if measure.command:
            common = options_of(name, ("device", "seed", *SAVING))
            options[name] = options_of(name, SOURCE) | of_measure | common
            texts[name] = f"{measure.question}\n\nExample: infsa-explain {name} --limit 50"
        for key, option in of_measure.items():
            if flags_of({key: option}).isdisjoint(flags_of(options["evaluate"])):
                options["evaluate"].setdefault(key, option)
    metrics = options["evaluate"]["metrics"]
    names = ", ".join([*MEASURES, *registered])
    options["evaluate"]["metrics"] = metrics._replace(help=metrics.help.format(names=names))
    return {
        name: command_function(partial(_measure, name, options[name]), options[name], texts[name])
        for name in options
    }


def registered_measures() -> dict[str, type[Measure]]:
    """Measures that do not come with the package, by name.

    There are none unless a module that registers one was imported, and the registry with it.
    """
    registry = sys.modules.get("infsa_explain.evaluate.registry")
    measures = {} if registry is None else registry.MEASURES
    return {name: measure for name, measure in measures.items() if name not in MEASURES}


def options_of_measure(measure: type[Measure]) -> dict[str, Option]:
    """The options of a measure, by field.

    They are the fields made by :func:`infsa_explain.evaluate.option`, and those that have the name
    of an option that measures share.

    Raises:
        ValueError: for a field that cannot become an option.
    """
    types = get_type_hints(measure)
    others = options_of(measure.name, (*SOURCE, "metrics", "device", "seed", *SAVING))
    taken = {"-h", "--help"} | flags_of(others)
    options: dict[str, Option] = {}
    for field in fields(cast(Any, measure)):
        name = field.name
        if "help" in field.metadata:
            option = _option_of_field(measure, field, types[name])
            if name in others or flags_of({name: option}) & (taken | flags_of(options)):
                raise ValueError(f"option {name!r} must have a name and a flag of its own")
            options[name] = option
        elif name in SHARED:
            options |= options_of(measure.name, [name])
    return options


def _option_of_field(measure: type[Measure], field: Field[Any], field_type: Any) -> Option:
    """The option that a field made by :func:`infsa_explain.evaluate.option` describes."""
    parse = field.metadata["parse"]
    flag = field.metadata["flag"] or f"--{field.name.replace('_', '-')}"
    option = Option(field_type, field.default, field.metadata["help"], flags=(flag,))
    option = option._replace(panel=measure.title)
    if parse is not None:
        return option._replace(
            type=str | None,
            default=None,
            shown=str(field.default),
            parse=partial(_parsed, flag, parse),
        )
    if not is_readable(field_type):
        raise ValueError(
            f"option {field.name!r} must be a bool, int, float, str, Path or Literal, or have a "
            f"parse function, got {field_type}"
        )
    if field.default is True:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    return option._replace(flags=(flag,))


def _parsed(flag: str, parse: Callable[[str], Any], text: str | None) -> Any:
    """The value of an option of a measure; None where it is left out."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ValueError(f"{flag} cannot be {text!r}: {error}") from None


def _measure(command: str, options: Mapping[str, Option], **values: Any) -> None:
    """Make the measures of a command with the values of its options, and print the results."""
    import torch

    from ..evaluate import measure_class

    several = command == "evaluate"
    classes = chosen_measures(values["metrics"]) if several else [measure_class(command)]
    loading: dict[str, Any] = {}
    if not values.get("control", True):
        loading["pretrained"] = False
    if values.get("size") is not None:
        loading["img_size"] = values["size"]
    measures = [with_options(cls, options, values, shared=several) for cls in classes]
    with torch.random.fork_rng(devices=[]):  # a model without trained weights draws them
        torch.manual_seed(values["seed"])
        models = load_models(values["model"], values["checkpoint"], values["device"], **loading)
    run(
        models,
        Source(**{name: values[name] for name in Source._fields if name in values}),
        measures,
        Saving(**{name: values[name] for name in Saving._fields}),
        conditions=conditions(values),
        as_json=values["as_json"],
        batch_size=values.get("images_a_pass", 16),
        optional=several and (not values["metrics"] or "all" in values["metrics"]),
    )


def chosen_measures(names: Sequence[str]) -> list[type[Measure]]:
    """The measures that ``--metrics`` names; those by default if it is left out.

    Raises:
        ValueError: for an unknown name.
    """
    from ..evaluate import measure_class, measure_names

    registered = measure_names()
    if unknown := [name for name in names if name not in (*registered, "all")]:
        raise ValueError(f"--metrics must be of {', '.join(registered)}, got {', '.join(unknown)}")
    everything = not names or "all" in names
    classes = [measure_class(name) for name in (registered if everything else names)]
    return [measure for measure in classes if names or measure.by_default]


def with_options(
    measure: type[Measure],
    options: Mapping[str, Option],
    values: Mapping[str, Any],
    *,
    shared: bool,
) -> Measure:
    """A measure with the values of those options that it has.

    Args:
        measure: its class.
        options: of the command, by name.
        values: of the options.
        shared: whether the command has several measures: then a measure takes only those options
            that have the type, the default and the help that it knows them by.
    """
    names = {field.name for field in fields(cast(Any, measure))} & set(options)
    if shared:
        of_measure = options_of_measure(measure)
        names = {
            name
            for name in names
            if name in of_measure and of_measure[name][:3] == options[name][:3]
        }
    left_out = {name for name in names if values[name] is None and options[name].default is None}
    return measure(**{name: values[name] for name in names - left_out})


def conditions(values: Mapping[str, Any]) -> str:
    """What the titles of tables say about the maps."""
    if "side" in values:
        return f", {values['side']} side"
    if "methods" not in values:
        return ""
    head = "" if values["head"] is None else f", head {values['head']}"
    target = "" if values["target"] == "predicted" else f", class: {values['target']}"
    return f", layer {values['layer']}{head}{target}"
