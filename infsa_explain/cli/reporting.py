"""Commands that show what came out: a page of a run, and a sheet of maps."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .options import OPTIONS
from .output import print_table
from .values import Source, drawn_methods, image_sample, listed, load_models, title_of

if TYPE_CHECKING:
    from torch import nn

    from ..data import ImageData


def report(
    *,
    folder: Path,
    model: list[str],
    checkpoint: list[Path],
    data: str | None,
    images: bool,
    device: str,
    out: Path | None,
) -> None:
    """Make one self-contained page of a run.

    The page has the verdict, tables, curves, pictures and diagnostics.

    Example: infsa-explain report runs/twins
    """
    from ..files import check_file
    from ..report.html import write_page
    from ..report.pictures import Gallery, draw_gallery
    from ..report.reading import read_run
    from ..report.verdict import judge

    if out is not None:
        check_file(out)
    run = read_run(folder)
    gallery: Gallery | str = "the report was made without them"
    if images:
        try:
            models, dataset = _opened(run.config, data, model, checkpoint, device)
            gallery = draw_gallery(run.report, run.config, models, dataset)
        except (ValueError, OSError) as error:
            if data is not None or model:
                raise
            gallery = str(error)
            print(f"no images: {error}", file=sys.stderr)
    for sentence in run.missing:
        print(sentence, file=sys.stderr)
    page = write_page(run, gallery, out)
    print(judge(run.report).text().replace("`", ""))
    print(f"\nwritten: {page} ({page.stat().st_size / 1e6:.1f} MB)")


def compare(*, folders: list[Path], as_json: bool) -> None:
    """Compare models by paired tests on the same images.

    The models are those of one run or of several. What is compared: MoRF-AOC over random, SRG,
    PR-AUC and accuracy, as far as the runs have them.

    Example: infsa-explain compare runs/linear runs/softmax
    """
    from ..evaluate.comparing import comparison_tables, comparison_texts
    from ..report.joining import join_runs

    report = join_runs(folders)
    if not report.comparisons:
        rows = (row for rows in report.rows.values() for row in rows)
        models = ", ".join(dict.fromkeys(row["model"] for row in rows))
        raise ValueError(
            "folders must hold runs of two models at least, with images in both and morf, boxes or "
            f"accuracy, got {models}"
        )
    if as_json:
        print(json.dumps(report.plain()["compared"], indent=2))
        return
    for table in comparison_tables(report.comparisons):
        print_table(table.title, table.headings, table.cells)
        print(table.note + "\n")
    for sentence in comparison_texts(report.comparisons):
        print(sentence.replace("`", ""))


def _opened(
    config: dict[str, Any],
    data: str | None,
    names: list[str],
    checkpoints: list[Path],
    device: str,
) -> tuple[dict[str, nn.Module], ImageData]:
    """The models and the images of a run: those of its command, or those that the user names.

    Of several checkpoints of a model, the first is taken.

    Raises:
        ValueError: something is missing, has changed since the run, or would be downloaded only
            because the run folder, which may be a stranger's, says so.
    """
    from ..report.pictures import check_same

    try:
        source = Source(**config["source"])
    except (KeyError, TypeError):
        raise ValueError("the run does not say where its images came from") from None
    images = (source if data is None else source._replace(data=data)).open()
    if not names:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument("--model", action="append", default=[])
        parser.add_argument("--checkpoint", action="append", default=[], type=Path)
        recorded, _ = parser.parse_known_args(shlex.split(config.get("command", "")))
        names, checkpoints = recorded.model or list(config["models"]), recorded.checkpoint
        _require_local(names, checkpoints)
    models = load_models(names, checkpoints, device)
    check_same(config, {title_of(key): model for key, model in models.items()}, images)
    first = {name: model for (name, _), model in reversed(models.items())}
    return first, images


def _require_local(names: list[str], checkpoints: list[Path]) -> None:
    """Refuse a model that would be downloaded: the user has to name it."""
    from ..catalogue import BUNDLED
    from ..models.checkpoints import is_checkpoint

    files = [Path(name) for name in names if is_checkpoint(name)] + checkpoints
    if missing := [file for file in files if not file.is_file()]:
        raise ValueError(f"the run's checkpoint {str(missing[0])!r} is not there")
    for name in names:
        local = name in BUNDLED or Path(name) in files or (checkpoints and ":" not in name)
        if not local:
            raise ValueError(
                f"the run's model {name!r} is not bundled, and nothing is downloaded because a "
                f"run folder says so; if you trust it, add --model {shlex.quote(name)}"
            )


def gallery(
    *,
    images: list[Path],
    model: list[str],
    checkpoint: list[Path],
    data: str,
    split: Literal["train", "val", "test"],
    limit: int,
    methods: list[str],
    layer: str,
    head: int | None,
    gamma: float | None,
    target: str | None,
    device: str,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """Draw images × models × methods as one picture.

    The same command writes its own picture again; it refuses to write over another picture.

    Example: infsa-explain gallery --model infvit_linear_digits --methods visits,perron,centre
    """
    from ..data.samples import readable
    from ..drawing.picture_files import check_picture, mark_of, save_picture
    from ..models.checkpoints import fingerprint
    from ..viewing.contact_sheets import contact_sheet

    check_picture(out, "", force=True)
    if methods == OPTIONS["gallery.methods"].default and head is not None:
        methods = methods[:1]  # the other has no heads
    listed("--methods", methods)
    networks = load_models(model, checkpoint, device)
    names = drawn_methods("--methods", methods, networks.values(), head, target)
    if images:
        samples = [image_sample(path) for path in images]
        sources = [readable(path.absolute()) for path in images]
    else:
        dataset = Source(data, split, limit, seed).open()
        samples = [dataset[i] for i in range(min(limit, len(dataset)))]
        sources = [dataset.fingerprint(), *(sample.image_id for sample in samples)]
    titled = {title_of(key): network for key, network in networks.items()}
    mark = mark_of(
        {
            "models": {name: fingerprint(network) for name, network in titled.items()},
            "images": sources,
            "methods": names,
            "layer": layer,
            "head": head,
            "gamma": gamma,
            "class": target,
            "seed": seed,
        }
    )
    check_picture(out, mark, force=force)
    figure = contact_sheet(
        titled,
        samples,
        names,
        layer=layer,
        head=head,
        gamma=gamma,
        target=target,
        untrained_seed=seed,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    save_picture(figure, out, mark, dpi=120)
    print(f"written: {out}")
