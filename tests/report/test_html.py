"""The page of a run: what it says, where lines lie, and that nothing in it runs or is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser

import cv2
import numpy as np
import pytest
from PIL import Image
from report_runs import digits_run, rows_of, write_run
from scipy import stats

import infsa_explain
from infsa_explain.__main__ import main
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate.alignment_tables import heat_maps
from infsa_explain.evaluate.deletion_tables import deletion_charts
from infsa_explain.evaluate.sanity import sanity_charts
from infsa_explain.report import Report, mean_curves
from infsa_explain.report.diagnostics import diagnostics
from infsa_explain.report.html import write_page
from infsa_explain.report.pictures import Gallery, RankedImage, check_same, draw_gallery
from infsa_explain.report.reading import read_run
from infsa_explain.report.styles import styles
from infsa_explain.vits.preprocessing import preprocess

EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><b>bold</b>",
    "`{{ 7171 * 7 }}` & ' co",
)


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of the page outside of style and scripts."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.scripts, self.inside = [], [], [], ""
        self.feed(page)
        self.text = re.sub(r"\s+", " ", "".join(self.texts))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag if tag in ("script", "style") else self.inside

    def handle_endtag(self, tag):
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)
        elif not self.inside:
            self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["infsa-explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def model():
    return infsa_explain.load("infvit_linear_digits")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("page") / "run", ("m", "other"))
    return read_run(folder), write_page(read_run(folder), "no reason").read_text()


def test_sections_come_in_order_and_hold_every_number(page):
    run, text = page
    parsed = Parsed(text)
    headings = [a.get("id") for a in parsed.all("section")]
    assert headings == [
        "verdict", "morf", "boxes", "sanity", "align", "compared", "images", "diagnostics",
        "repeat",
    ]  # fmt: skip
    for table in run.report.tables():
        for row in table.cells:
            for cell in row[2:]:
                for part in re.split(r" (?=\[)|(?<=\]) ", cell):
                    shown = re.sub(r"(?<![\w.])-(?=\d)", "−", part).replace(" d ", ", d ")
                    assert shown in parsed.text
    assert "No images are shown: no reason." in parsed.text


def test_nothing_is_fetched_and_one_script_may_run(page):
    _, text = page
    parsed = Parsed(text)
    links = [a.get(key) for _, a in parsed.tags for key in ("src", "href") if a.get(key)]
    assert links and all(link.startswith(("data:image/", "#")) for link in links)
    assert "://" not in text and "@import" not in text
    data, script = parsed.scripts
    (policy,) = [a["content"] for a in parsed.all("meta") if "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    assert len(json.loads(data)) == 4  # deletion and sanity of two models
    assert not any(key.startswith("on") for _, a in parsed.tags for key in a)


def test_names_with_markup_are_shown_and_not_run(tmp_path):
    script, image, closing, braces = EVIL
    folder = write_run(
        tmp_path / "run",
        (script, braces),
        ("visits", image, closing, "random"),
        (*EVIL, "fifth"),
        skipped=[f"cannot read {image}"],
        more={"command": f"python {closing}", "versions": {script: image}},
    )
    picture = RankedImage("best", image, "12.0", script, 0, "", [], 1.0)
    gallery = Gallery("MoRF-AOC", {script: {closing: [picture]}}, ["data:image/webp;base64,AA"])
    text = write_page(read_run(folder), gallery, tmp_path / "page.html").read_text()
    parsed = Parsed(text)
    assert [a for a in parsed.all("script")] == [{"type": "application/json", "id": "charts"}, {}]
    assert parsed.all("img") == [] and "50197" not in parsed.text
    for name in EVIL[:3]:
        assert name in parsed.text
    assert f"cannot read {image}" in parsed.text and f"python {closing}" in parsed.text
    names = {line["name"] for chart in json.loads(parsed.scripts[0]) for line in chart["lines"]}
    assert names == {"visits", image, closing, "random"}
    assert {a["data-name"] for a in parsed.all("button") if "data-name" in a} == names


def test_lines_lie_where_the_means_are():
    rows = [row for row in rows_of("m", ["visits", "random"], list("abcdefgh")) if "aoc" in row]
    (chart,) = deletion_charts(rows)
    means = mean_curves(rows)
    assert [(line.name, line.order) for line in chart.lines] == [
        ("visits", "morf"), ("visits", "lerf"), ("random", "morf"), ("random", "lerf"),
    ]  # fmt: skip
    for line in chart.lines:
        fractions, expected = means["m", line.name, line.order]
        np.testing.assert_allclose(line.mean, expected, atol=1e-12)
        points = np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", chart.path(line)), dtype=float)
        np.testing.assert_allclose(points[:, 0], 46 + fractions * (448 - 46), atol=0.051)
        np.testing.assert_allclose(points[:, 1], 256 - expected * (256 - 12), atol=0.051)
    assert chart.at == ["0.0% removed", "10.0% removed", "30.0% removed", "60.0% removed",
                        "100.0% removed"]  # fmt: skip


def test_the_band_is_about_the_percentile_bootstrap():
    images = [f"{i}" for i in range(40)]
    rows = [row for row in rows_of("m", ["visits"], images) if row["measure"] == "morf"]
    (chart,) = deletion_charts(rows)
    curves = np.array([row["probabilities"] for row in rows if row["order"] == "morf"])
    low, high = stats.bootstrap(
        (curves,), np.mean, axis=0, n_resamples=20_000, method="percentile", batch=1000, rng=1
    ).confidence_interval
    np.testing.assert_allclose(chart.lines[0].low, low, atol=2e-3)
    np.testing.assert_allclose(chart.lines[0].high, high, atol=2e-3)


def test_images_of_several_checkpoints_are_averaged_first():
    rows = [row for row in rows_of("m", ["visits"], ["a", "b"]) if row["measure"] == "morf"]
    again = [dict(row, checkpoint="2") for row in rows]
    for row in again:
        row["probabilities"] = [p / 2 for p in row["probabilities"]]
    (chart,) = deletion_charts(rows + again)
    curves = [row["probabilities"] for row in rows if row["order"] == "morf"]
    np.testing.assert_allclose(chart.lines[0].mean, 0.75 * np.mean(curves, axis=0), atol=1e-12)


def test_long_curves_are_thinned_and_keep_their_ends():
    fractions = np.linspace(0, 1, 577)
    row = {"measure": "morf", "image": "a", "model": "m", "method": "visits", "order": "morf"}
    row |= {"checkpoint": ""}
    row |= {"fractions": fractions.tolist(), "probabilities": (1 - fractions).tolist()}
    (chart,) = deletion_charts([row, dict(row, order="lerf")])
    assert len(chart.x) == 100 and (chart.x[0], chart.x[-1]) == (0, 1)
    np.testing.assert_allclose(chart.lines[0].mean, 1 - chart.x, atol=1e-12)
    assert np.isnan(chart.lines[0].low).all()  # one image has no interval
    assert chart.data()["lines"][0]["low"] == [None] * 100


def test_a_line_breaks_where_nothing_is_known():
    rows = [row for row in rows_of("m", ["visits"], ["a", "b", "c"]) if "spearman" in row]
    rows = [dict(row, spearman=[1.0, 0.5, None, -0.5]) for row in rows if "stages" in row]
    (chart,) = sanity_charts(Report(rows).summaries["sanity"])
    assert chart.y_ticks == [-0.6, -0.4, -0.2, 0, 0.2, 0.4, 0.6, 0.8, 1.0]
    path = chart.path(chart.lines[0])
    assert path.count("M") == 2 and path.count("L") == 2  # trained, head, blocks.1; embeddings
    assert chart.data()["lines"][0]["mean"] == [1.0, 1.0, 0.5, None, -0.5]


def test_heat_map_is_layer_by_head():
    rows = [row for row in rows_of("m", ["visits"], ["a", "b"]) if row["measure"] == "align"]
    for row in rows:
        if (row["layer"], row["head"]) == (1, 2):
            row["cosine"]["linear"] = None
    (heat,) = heat_maps(rows)
    for layer, cells in heat.rows.items():
        for head, cell in enumerate(cells):
            own = [r for r in rows if (r["layer"], r["head"]) == (layer, head)]
            if (layer, head) == (1, 2):
                assert np.isnan(cell.value)
                assert cell.words == "layer 1, head 2: no cosine; dead in 100.0% of images"
            else:
                expected = np.mean([r["cosine"]["linear"] for r in own])
                assert cell.value == pytest.approx(expected, abs=1e-12)


def test_names_look_the_same_everywhere_and_controls_are_grey():
    names = ["random", *(f"m{i}" for i in range(9)), "centre", "untrained-m0"]
    found = styles(names)
    assert [found[f"m{i}"].colour for i in range(9)] == [f"c{i % 7}" for i in range(9)]
    assert found["m0"].marker == "" != found["m7"].marker  # colours come again, marked
    controls = [found[name] for name in ("random", "centre", "untrained-m0")]
    assert [style.colour for style in controls] == ["grey0", "grey1", "grey2"]


def test_diagnostics(page):
    run, _ = page
    table = diagnostics(run.report)
    assert table.headings == ("", "m", "other")
    cells = {row[0]: row[1] for row in table.cells}
    assert cells["dead heads"] == "33.3%; 33.3% in layer 0"
    assert cells["rows for which the walk is no chain"] == "2.0%; 2.0% in layer 0"
    assert cells["Perron vectors that are not resolved"] == "0"
    assert cells["images without a defined AOC"] == "0"
    tied = "visits 25.0%, katz 25.0%, random 25.0%, centre 25.0%"
    assert cells["patches whose score ties with another's"] == tied


def test_undefined_numbers_and_single_images_make_a_page(tmp_path):
    rows = rows_of("m", ["visits", "random", "centre"], ["a"])
    for row in rows:
        for key in ("aoc", "ap", "prevalence", "stability"):
            if key in row:
                row[key] = None
        if row["measure"] == "sanity":
            row["spearman"] = [None] * 4
        if row["measure"] == "align":
            row["cosine"] = dict.fromkeys(row["cosine"])
    folder = write_run(tmp_path / "run", images=["a"])
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.1-of-1.jsonl").write_text(lines)
    progress = {"bytes": len(lines), "done": {"m": 1}, "skipped": []}
    (folder / "progress.1-of-1.json").write_text(json.dumps(progress))
    parsed = Parsed(write_page(read_run(folder), "").read_text())
    charts = json.loads(parsed.scripts[0], parse_constant=lambda name: pytest.fail(name))
    assert len(charts) == 2
    assert "no image has a defined MoRF-AOC" in parsed.text


# --- pictures


def test_best_median_and_worst_image(tmp_path, model):
    methods = ("visits", "random", "untrained-visits")
    folder = digits_run(tmp_path / "run", {"infvit_linear_digits": model}, methods, 5)
    run = read_run(folder)
    aoc = {"visits": [0.3, None, 0.9, 0.1, 0.5], "random": [0.5, 0.5, 0.5, 0.5, 0.5]}
    for row in run.report.rows["morf"]:
        i = int(row["image"].split("/")[-1])
        row["aoc"] = aoc.get(row["method"], [1, 2, 3, 4, 5])[i]
    data = PhotoDigits("val", 5)
    models = {"infvit_linear_digits": model}
    check_same(run.config, models, data)
    gallery = draw_gallery(run.report, run.config, models, data)
    drawn = gallery.models["infvit_linear_digits"]
    assert gallery.measure == "MoRF-AOC" and list(drawn) == list(methods)
    shown = [(p.rank, p.image[-1], p.value) for p in drawn["visits"]]
    assert shown == [("best", "2", "90.0"), ("median", "0", "30.0"), ("worst", "3", "10.0")]
    assert [p.image[-1] for p in drawn["random"]] == ["0", "2", "4"]  # ties: in their order
    best = drawn["visits"][0]
    assert best.facts == "predicted 5 (80%), labelled 3"
    x0, y0, x1, y1 = 100 * data[2].boxes[0] / 112
    np.testing.assert_allclose(best.boxes, [(x0, y0, x1 - x0, y1 - y0)], atol=0.006)
    # The picture is the overlay of the map that explain() gives, but for what WebP loses.
    pixels = cv2.resize(data[2].image, (224, 224), interpolation=cv2.INTER_CUBIC)
    scores = infsa_explain.explain(model, preprocess(model, data[2].image), "visits").maps[0]
    for uri, expected in (
        (best.overlay, infsa_explain.overlay(pixels, scores)),
        (gallery.plain[best.plain], pixels),
    ):
        encoded = np.frombuffer(base64.b64decode(uri.removeprefix("data:image/webp;base64,")), "u1")
        decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)[..., ::-1].astype(float)
        assert np.abs(decoded - expected).mean() < 4


def test_other_images_or_weights_are_refused(tmp_path, model):
    name = "infvit_linear_digits"
    run = read_run(digits_run(tmp_path / "run", {name: model}, ("visits",), 3))
    with pytest.raises(ValueError, match=r"'photo-digits' \(4 images\) is not the data of the run"):
        check_same(run.config, {}, PhotoDigits("val", 4))
    run.config["models"][name]["weights"] = "other"
    with pytest.raises(ValueError, match="weights of 'infvit_linear_digits' are not those"):
        check_same(run.config, {name: model}, PhotoDigits("val", 3))


def test_a_run_that_ranks_nothing_has_no_pictures(tmp_path, model):
    run = read_run(write_run(tmp_path / "run"))
    for measure in ("morf", "boxes"):
        del run.report.rows[measure]
    with pytest.raises(ValueError, match="without morf or boxes ranks no images"):
        draw_gallery(run.report, run.config, {"m": model}, PhotoDigits("val", 3))


def test_images_are_found_where_some_could_not_be_read(tmp_path, model):
    for i in (0, 1, 2, 3):
        pixels = PhotoDigits("val", 4)[i].image
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    (tmp_path / "0.png").write_bytes(b"no image")
    data = infsa_explain.data.open_data(tmp_path)
    run = read_run(write_run(tmp_path / "run", images=["1.png", "2.png", "3.png"]))
    gallery = draw_gallery(run.report, run.config, {"m": model}, data)
    images = {p.image for pictures in gallery.models["m"].values() for p in pictures}
    assert images == {"1.png", "2.png", "3.png"}
    (tmp_path / "2.png").unlink()
    with pytest.raises(ValueError, match="image '2.png' of the run cannot be read any more"):
        draw_gallery(run.report, run.config, {"m": model}, data)


# --- the command


def test_report_of_a_run_with_its_images(cli, tmp_path, model):
    folder = digits_run(
        tmp_path / "run", {"infvit_linear_digits": model}, ("visits", "random", "centre"), 4
    )
    code, stdout, stderr = cli("report", folder, "--out", tmp_path / "deep" / "page.html")
    assert (code, stderr) == (0, "")
    assert stdout.startswith("By deletion, the one map ")
    assert f"written: {tmp_path / 'deep' / 'page.html'}" in stdout
    parsed = Parsed((tmp_path / "deep" / "page.html").read_text())
    assert len(parsed.all("img")) == 9
    assert "python -m infsa_explain evaluate --model infvit_linear_digits" in parsed.text
    code, _, stderr = cli("report", folder, "--data", tmp_path)
    assert code == 2 and "holds no images" in stderr
    code, _, stderr = cli("report", folder, "--no-images")
    assert code == 0 and "made without them" in (folder / "report.html").read_text()


def test_without_its_images_the_page_says_why(cli, tmp_path):
    code, _, stderr = cli("report", write_run(tmp_path / "run"))
    assert code == 0
    assert stderr == "no images: the run does not say where its images came from\n"
    text = (tmp_path / "run" / "report.html").read_text()
    assert "No images are shown: the run does not say where its images came from." in text


def test_an_unfinished_run_is_told_of_and_shown(cli, tmp_path):
    folder = write_run(tmp_path / "run", of=20, skipped=["a.jpg is damaged"])
    code, stdout, stderr = cli("report", folder, "--no-images")
    sentence = "This run is not finished. Done: 7 of 20 images of m."
    assert code == 0 and sentence in stderr and "Few images" in stdout
    parsed = Parsed((folder / "report.html").read_text())
    assert sentence in parsed.text and "a.jpg is damaged" in parsed.text


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "holds no run: it has no config.json"),
        ("{}", "holds no run: its config.json lacks data, measures, models, shards"),
        ("{", "is not that of a run"),
        ("[]", "is not that of a run"),
    ],
)
def test_a_folder_that_is_no_run(cli, tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    code, stdout, stderr = cli("report", tmp_path)
    assert (code, stdout) == (2, "")
    assert message in stderr and stderr.count("\n") == 1


def test_a_run_without_rows_and_a_folder_as_file(cli, tmp_path):
    folder = write_run(tmp_path / "run")
    code, _, stderr = cli("report", folder, "--no-images", "--out", tmp_path)
    assert code == 2 and "--out needs the name of a file" in stderr
    (folder / "progress.1-of-1.json").unlink()
    code, _, stderr = cli("report", folder)
    assert code == 2 and "no image is done yet" in stderr


def test_gallery_draws_images_by_models_and_methods(cli, tmp_path):
    out = tmp_path / "sheets" / "gallery.png"
    code, stdout, _ = cli(
        "gallery", "--model", "infvit_linear_digits", "--methods", "visits,degree", "--limit", 2,
        "--out", out,
    )  # fmt: skip
    assert code == 0 and str(out) in stdout
    with Image.open(out) as picture:
        width, height = picture.size
    assert width > height > 400
