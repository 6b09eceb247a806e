"""The benchmark: rivals against their formulas, arithmetic against the paper's, states of cells."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from infsa_explain.__main__ import main
from infsa_explain.bench import (
    FUSED,
    MECHANISMS,
    BenchRow,
    CsvFile,
    Measurement,
    OutOfMemory,
    Setting,
    TooSlow,
    bench_plot,
    bench_table,
    build,
    count_operations,
    exponent,
    measure_setting,
    paper_table,
    run_bench,
    write_bench,
)
from infsa_explain.bench.energy import joules_counter
from infsa_explain.bench.growth import SLACK
from infsa_explain.bench.measuring import measure_here
from infsa_explain.bench.mechanisms import (
    Linformer,
    Nystromformer,
    Performer,
    ReluLinear,
    softmax_weights,
)
from infsa_explain.bench.settings import available_memory, least_bytes, work

SMALL = Setting(FUSED, 64, depth=1, width=32, heads=4)


@pytest.fixture
def qkv():
    """Queries, keys and values (2, 3, 23, 8) in float64."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 3, 23, 8, generator=generator, dtype=torch.float64).unbind()


def softmax_attention(q, k, v):
    """By NumPy, head by head."""
    q, k, v = (x.numpy() for x in (q, k, v))
    scores = np.exp(np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1]))
    return torch.from_numpy((scores / scores.sum(-1, keepdims=True)) @ v)


@pytest.mark.parametrize("name", [FUSED, "softmax"])
def test_softmax_is_softmax(name, qkv):
    mixed = MECHANISMS[name].layer(24, 3).mix(*qkv)
    torch.testing.assert_close(mixed, softmax_attention(*qkv), rtol=0, atol=1e-12)


def test_linformer_with_identity_projections_is_softmax(qkv):
    layer = type("Whole", (Linformer,), {"tokens": 23})(24, 3).double()
    assert layer.key_projection.shape == (23, 23)
    for projection in (layer.key_projection, layer.value_projection):
        nn.init.eye_(projection)
    mixed = layer.mix(*qkv)
    torch.testing.assert_close(mixed, softmax_attention(*qkv), rtol=0, atol=1e-12)


def test_linformer_mixes_projected_keys_and_values(qkv):
    layer = type("Low", (Linformer,), {"tokens": 23, "rank": 5})(24, 3).double()
    q, k, v = qkv
    e, f = layer.key_projection.detach(), layer.value_projection.detach()
    expected = softmax_attention(
        q, torch.einsum("rn,bhnd->bhrd", e, k), torch.einsum("rn,bhnd->bhrd", f, v)
    )
    torch.testing.assert_close(layer.mix(*qkv), expected, rtol=0, atol=1e-12)


def test_performer_with_many_features_is_near_softmax(qkv):
    torch.manual_seed(0)
    layer = type("Wide", (Performer,), {"features": 10_000})(24, 3).double()
    qkv = (qkv[0] / 2, qkv[1] / 2, qkv[2])  # the features' variance grows as exp ‖q + k‖²
    error = layer.mix(*qkv) - softmax_attention(*qkv)
    assert error.std() < 0.008  # directions that are not uniform leave 0.012 and more
    few = type("Narrow", (Performer,), {"features": 40})(24, 3).double()
    assert (few.mix(*qkv) - softmax_attention(*qkv)).std() > 4 * error.std()


def test_performer_has_orthogonal_features_of_gaussian_length():
    torch.manual_seed(0)
    omega = type("Wide", (Performer,), {"features": 8000})(24, 3).omega
    block = omega[:8] / omega[:8].norm(dim=1, keepdim=True)
    torch.testing.assert_close(block @ block.T, torch.eye(8), rtol=0, atol=1e-5)
    assert omega.square().sum(1).mean().item() == pytest.approx(8, rel=0.03)  # χ² with 8 degrees
    assert Performer(64, 4).omega.shape == (int(16 * math.log(16)), 16)


def test_nystromformer_with_all_landmarks_is_softmax(qkv):
    layer = type("Exact", (Nystromformer,), {"landmarks": 23, "iterations": 40})(24, 3)
    torch.testing.assert_close(layer.mix(*qkv), softmax_attention(*qkv), rtol=0, atol=1e-6)


def test_nystromformer_is_its_formula_with_numpys_pseudo_inverse(qkv):
    layer = type("Some", (Nystromformer,), {"landmarks": 4, "iterations": 30})(24, 3)
    q, k, v = (x[..., :20, :] for x in qkv)
    q_means, k_means = (x.unflatten(2, (4, 5)).mean(3) for x in (q, k))
    inverse = torch.from_numpy(np.linalg.pinv(softmax_weights(q_means, k_means).numpy()))
    expected = softmax_weights(q, k_means) @ inverse @ softmax_attention(q_means, k, v)
    torch.testing.assert_close(layer.mix(q, k, v), expected, rtol=0, atol=1e-8)


def test_relu_linear_is_the_quadratic_form(qkv):
    q, k, v = qkv
    weights = torch.relu(q) @ torch.relu(k).transpose(-2, -1)
    expected = weights @ v / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(ReluLinear(24, 3).mix(q, k, v), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_fits_the_shell_and_its_counted_form_agrees(name):
    torch.manual_seed(0)
    setting = replace(SMALL, mechanism=name)
    images = torch.randn(2, 3, 64, 64)
    model = build(setting).eval()
    outputs = model(images)
    assert outputs.shape == (2, 1000)
    counted = build(setting, MECHANISMS[name].counted).eval()
    counted.load_state_dict(model.state_dict())
    torch.testing.assert_close(counted(images), outputs, rtol=1e-4, atol=1e-5)
    work(replace(setting, train=True, amp=True), model.train(), images)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_masks_are_refused():
    with pytest.raises(ValueError, match="ReluLinear takes no attention mask"):
        ReluLinear(8, 2)(torch.zeros(1, 3, 8), is_causal=True)


def test_operations_are_those_counted_by_hand():
    n, d = 17, 32
    embedding, classifier = 2 * (n - 1) * 3 * 16 * 16 * d, 2 * d * 1000
    layer = 2 * n * (4 * d * d + 8 * d * d) + 2 * 2 * n * n * d
    for name in (FUSED, "softmax", "pure", "pure-textbook"):
        assert count_operations(replace(SMALL, mechanism=name))[1] == embedding + layer + classifier


@pytest.mark.parametrize("train", [False, True])
def test_operations_of_linear_infsa_are_those_counted_by_hand(train):
    """Queries take N·D²; scores, their sums and, in training, their gradients N·D·H each."""
    n, d, h = 17, 32, 4
    embedding, classifier, mlp = (n - 1) * 3 * 16 * 16 * d, d * 1000, 8 * n * d * d
    layer = n * d * d + 2 * n * d * h + 3 * d * d + d  # d: the keys' bias at the central query
    if train:
        embedding, classifier, mlp = 2 * embedding, 3 * classifier, 3 * mlp
        layer += 2 * n * d * d + 4 * n * d * h + 6 * d * d
    setting = replace(SMALL, mechanism="linear", train=train)
    assert count_operations(setting)[1] == 2 * (embedding + layer + mlp + classifier)


def test_fifty_nine_gflops_are_multiply_adds_of_24_layers_not_4():
    def multiply_adds(name, depth):
        return count_operations(Setting(name, 224, depth=depth))[1] / 2e9

    assert multiply_adds("linear-textbook", 24) == pytest.approx(59.6, abs=0.1)
    assert multiply_adds("softmax", 24) == pytest.approx(61.6, abs=0.1)
    assert multiply_adds("linear-textbook", 4) == pytest.approx(10.1, abs=0.1)
    assert multiply_adds("softmax", 4) == pytest.approx(10.4, abs=0.1)


def test_parameters_are_the_models_own():
    for name in MECHANISMS:
        setting = replace(SMALL, mechanism=name)
        assert count_operations(setting)[0] == sum(p.numel() for p in build(setting).parameters())


def test_least_bytes_are_one_float32_matrix_a_head():
    setting = Setting("softmax", 9216)
    assert setting.tokens == 576**2 + 1 == 331_777
    assert least_bytes(setting) == 4 * 64 * 331_777**2
    assert least_bytes(replace(setting, train=True, batch_size=2)) == 8 * 4 * 64 * 331_777**2
    assert least_bytes(replace(setting, compiled=True)) == 0
    assert [n for n in MECHANISMS if least_bytes(replace(setting, mechanism=n))] == [
        "softmax",
        "pure-textbook",
    ]


def quadratic(setting, repeats, budget):
    """A machine that takes N² microseconds, and memory for all but Performer."""
    if setting.mechanism == "performer":
        raise OutOfMemory
    seconds = 1e-6 * setting.tokens**2 * (0.5 if setting.mechanism == FUSED else 1)
    if 2 * seconds > budget:
        raise TooSlow
    return Measurement(seconds, repeats, 2**30, 3.0)


def rows_of(sizes, names, budget=1.0, like=SMALL):
    rows = run_bench(sizes, names, like, repeats=2, budget=budget, measure=quadratic)
    return {(row.mechanism, row.size): row for row in rows}


def test_rows_have_rates_and_ratios_to_fused_softmax():
    rows = rows_of([64, 128], ["linear"], like=replace(SMALL, batch_size=2))
    assert list(rows) == [(FUSED, 64), ("linear", 64), (FUSED, 128), ("linear", 128)]
    row = rows["linear", 128]
    assert (row.state, row.tokens, row.repeats, row.peak_bytes) == ("measured", 65, 2, 2**30)
    assert row.seconds == pytest.approx(65**2 / 1e6)
    assert row.images_per_second == pytest.approx(2e6 / 65**2)
    assert row.speed_to_fused == pytest.approx(0.5)
    assert row.exponent == pytest.approx(2)
    assert row.joules_per_image == 1.5
    assert rows["linear", 64].exponent is None


def test_a_cell_over_its_budget_is_extrapolated_from_smaller_sizes():
    rows = rows_of([1024], ["linear"])
    measured = [size for (name, size), row in rows.items() if row.state == "measured"]
    assert measured == [128, 256, 128, 256]  # 512 would take 2 · 1.05 s of linear, of fused 1.05
    row = rows["linear", 1024]
    assert row.state == "extrapolated"
    assert row.seconds == pytest.approx(4097**2 / 1e6)
    assert row.exponent == pytest.approx(2)
    assert row.speed_to_fused == pytest.approx(0.5)
    assert (row.peak_bytes, row.joules_per_image) == (None, None)
    # Two sizes, 65 and 257 tokens: linear to quadratic growth from the larger one.
    low, high = 257 * 4097 / 1e6 / SLACK, 4097**2 / 1e6 * SLACK
    assert (row.seconds_low, row.seconds_high) == pytest.approx((low, high))
    down, up = np.log(row.seconds / low), np.log(high / row.seconds)
    assert row.speed_to_fused_low == pytest.approx(0.5 * np.exp(-np.hypot(down, up)))
    assert row.speed_to_fused_high == pytest.approx(0.5 * np.exp(np.hypot(down, up)))
    cells = {cell[2]: cell for cell in bench_table([row]).cells}
    assert cells["linear"][3:5] == ("~16.8 s [0.84, 21]", "~0.50 [0.024, 11]")


def test_a_measured_time_has_a_ratio_with_interval_where_fused_softmax_is_extrapolated():
    def fast_linear(setting, repeats, budget):
        if setting.mechanism == "linear":
            return Measurement(1e-5 * setting.tokens, repeats, 2**30, None)
        return quadratic(setting, repeats, budget)

    rows = [*run_bench([64, 128, 1024], ["linear"], SMALL, budget=1.0, measure=fast_linear)]
    fused, row = rows[-2:]
    assert (fused.state, row.state) == ("extrapolated", "measured")
    assert row.seconds_low is None
    assert row.speed_to_fused == pytest.approx(0.5e-6 * 4097**2 / 0.04097)
    assert row.speed_to_fused_low == pytest.approx(fused.seconds_low / row.seconds)
    assert row.speed_to_fused_high == pytest.approx(fused.seconds_high / row.seconds)
    of_fused, of_row = bench_table([fused, row]).cells
    assert of_fused[4] == "1.00"
    assert of_row[3] == "41 ms"
    assert of_row[4].startswith("~204.85 [")
    note = bench_table(rows).note
    assert "a·N + b·N²" in note
    assert "nothing is extrapolated with it" in note


def test_intervals_in_the_plot_are_error_bars_of_hollow_points():
    rows = [*rows_of([64, 128, 256, 1024], ["linear"]).values()]
    axis = bench_plot(rows).axes[0]
    extrapolated = [row for row in rows if row.state == "extrapolated"]
    assert len(axis.containers) == len(extrapolated) == 2
    for row, container in zip(extrapolated, axis.containers, strict=True):
        points, _, (bars,) = container
        (segment,) = bars.get_segments()
        assert points.get_markerfacecolor() == "white"
        assert segment[:, 1] == pytest.approx((row.seconds_low, row.seconds_high))


def test_with_one_affordable_size_a_cell_is_too_slow():
    row = rows_of([32], ["linear"], budget=1e-5)["linear", 32]
    assert (row.state, row.seconds, row.speed_to_fused) == ("too slow", None, None)


def test_out_of_memory_is_a_result():
    rows = rows_of([64], ["performer"])
    assert rows["performer", 64].state == "OOM"
    assert bench_table([*rows.values()]).cells[1][3] == "OOM"


def test_out_of_memory_is_predicted_where_arithmetic_says_so():
    many = replace(SMALL, batch_size=10**12)
    row = rows_of([64], ["softmax"], 1e9, many)["softmax", 64]
    assert (row.state, row.seconds, row.peak_bytes) == ("OOM (predicted)", None, None)


def test_memory_is_limited_by_the_control_group(tmp_path, monkeypatch):
    monkeypatch.setattr("infsa_explain.bench.settings.CGROUP", tmp_path)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10**9))
    assert available_memory() == 10**9
    (tmp_path / "memory.current").write_text("400\n")
    for limit, available in (("max", 10**9), ("1000", 600), ("9000000000", 10**9)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert available_memory() == available


def test_exponents_are_of_the_three_largest_sizes():
    times = {n: 3e-4 * n**1.5 for n in (50, 100, 200)} | {10: 7.0}
    assert exponent(times) == pytest.approx(1.5)
    assert exponent({100: 1.0}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": "magic"}, "mechanism must be one of softmax-fused, .*, got 'magic'"),
        ({"size": 100}, "size must be a positive multiple of 16, got 100"),
        ({"heads": 5}, "width must be a multiple of heads, got 32, 5"),
        ({"depth": 0}, "depth must be a whole number from 1 to 10000, got 0"),
    ],
)
def test_settings_that_make_no_model_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_no_repeats_are_refused():
    with pytest.raises(ValueError, match="repeats must be a whole number from 1 to 1000000, got 0"):
        run_bench([64], [FUSED], SMALL, repeats=0)


def test_energy_of_cpu_packages_is_summed_through_overflow(tmp_path):
    assert joules_counter("cpu", tmp_path) is None
    for name, used in (("intel-rapl:0", 900), ("intel-rapl:1", 10), ("intel-rapl:0:0", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{used}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("999\n")
    joules = joules_counter("cpu", tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100\n")  # 900 … 999, 0 … 100
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("30\n")
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("500\n")  # part of a package
    assert joules() == pytest.approx(220e-6)


def test_a_training_step_is_measured():
    result = measure_here(replace(SMALL, mechanism="linear", train=True), repeats=3)
    assert result.repeats == 3
    assert measure_here(SMALL, repeats=3, enough=0).repeats == 1


def test_a_process_of_its_own_has_its_own_peak():
    ballast = torch.ones(2**26)  # 256 MiB that are not the child's
    small = measure_setting(SMALL, 1, 300).peak_bytes
    wide = measure_setting(replace(SMALL, width=2048, depth=2), 1, 300).peak_bytes
    weights = 4 * count_operations(replace(SMALL, width=2048, depth=2))[0]
    assert wide - small == pytest.approx(weights, rel=0.25)
    del ballast


def test_a_process_over_its_budget_is_too_slow():
    with pytest.raises(TooSlow, match=r"takes more than 0\.01 s"):
        measure_setting(replace(SMALL, width=2048, depth=8), 1, 0.01)


def test_a_failing_process_says_why():
    with pytest.raises(RuntimeError, match="failed: "):
        measure_setting(replace(SMALL, device="nowhere"), 1, 300)


def test_files_of_a_run(tmp_path):
    rows = list(rows_of([64, 128, 1024], [*MECHANISMS]).values())
    with CsvFile(tmp_path / "run" / "bench.csv") as file:
        for index, row in enumerate(rows):
            file.append(row)
            text = (tmp_path / "run" / "bench.csv").read_text()
            assert len(text.splitlines()) == index + 2  # on the disk at once
    with (tmp_path / "run" / "bench.csv").open() as written:
        read = list(csv.DictReader(written))
    assert [float(row["gflops"]) for row in read] == [row.gflops for row in rows]
    with pytest.raises(ValueError, match="exists already; --resume it, or name another"):
        CsvFile(tmp_path / "run" / "bench.csv")
    write_bench(tmp_path / "run", rows)
    assert (tmp_path / "run" / "bench.png").read_bytes()[:4] == b"\x89PNG"
    text = (tmp_path / "run" / "bench.md").read_text()
    assert "| 1024 | 4,097 | linear | ~16.8 s [8.3, 21] | ~0.50 [0.24, 1.1] |" in text
    assert "59·10⁹ is what 24 layers take" in text


def test_rows_that_are_there_are_not_measured_again(tmp_path):
    """A kill may cut the last of them short; what comes out is what an undisturbed run has."""
    path = tmp_path / "bench.csv"
    names = ["linear", "pure", "softmax"]
    whole = [*rows_of([64, 128, 1024], names).values()]
    assert {row.state for row in whole} >= {"measured", "extrapolated"}
    with CsvFile(path) as file:
        for row in whole:
            file.append(row)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for end in (0, 7, ends[0], ends[3], ends[3] + 20, ends[-2], ends[-1] - 1, ends[-1]):
        path.write_bytes(content[:end])
        fresh = []

        def measure(setting, repeats, budget):
            fresh.append((setting.mechanism, setting.size))  # noqa: B023
            return quadratic(setting, repeats, budget)

        with CsvFile(path, resume=True) as file:
            assert file.rows == whole[: max(0, sum(e <= end for e in ends) - 1)]
            for row in run_bench(
                [64, 128, 1024],
                names,
                SMALL,
                repeats=2,
                budget=1,
                finished=file.rows,
                measure=measure,
            ):
                file.append(row)
        assert path.read_bytes() == content
        known = {(row.mechanism, row.size) for row in file.rows}
        assert not known & set(fresh)


def earlier(rows):
    """The file of an earlier version: no intervals."""
    columns = [f.name for f in fields(BenchRow) if not f.name.endswith(("_low", "_high"))]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue().encode()


def test_a_file_of_an_earlier_version_is_gone_on_with(tmp_path):
    """Its measured times are kept; nothing is left of its extrapolations."""
    path = tmp_path / "bench.csv"

    def fast_linear(setting, repeats, budget):
        if setting.mechanism == "linear":
            return Measurement(1e-5 * setting.tokens, repeats, 2**30, None)
        measured.append((setting.mechanism, setting.size))
        return quadratic(setting, repeats, budget)

    measured = []
    options = {"budget": 1.0, "measure": fast_linear}
    whole = [*run_bench([64, 128, 1024], ["linear", "softmax"], SMALL, **options)]
    by_power_law = [replace(r, seconds=99.0) if r.state == "extrapolated" else r for r in whole]
    for content in (earlier(by_power_law), earlier(by_power_law) + b"linear,6", earlier([])[:300]):
        path.write_bytes(content)
        with CsvFile(path, resume=True) as file:
            kept = [row for row in whole if row.state != "extrapolated"]
            if len(content) > 300:
                assert [row.seconds for row in file.rows] == [row.seconds for row in kept]
                (late,) = [r for r in file.rows if (r.mechanism, r.size) == ("linear", 1024)]
                assert late.speed_to_fused is None
                assert all(r.speed_to_fused for r in file.rows if r.size < 1024)
            measured.clear()
            finished = file.rows
            for row in run_bench(
                [64, 128, 1024], ["linear", "softmax"], SMALL, finished=finished, **options
            ):
                file.append(row)
        assert not {(r.mechanism, r.size) for r in finished} & set(measured)
        with CsvFile(path, resume=True) as file:
            assert {(r.mechanism, r.size, r.seconds, r.seconds_low) for r in file.rows} == {
                (r.mechanism, r.size, r.seconds, r.seconds_low) for r in whole
            }
        assert [p.name for p in tmp_path.iterdir()] == ["bench.csv"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"mechanism,size\r\nlinear,64\r\n", "has other columns than a bench.csv of this version"),
        (b"my only copy", r"bench\.csv is not a bench\.csv"),
        (None, r"bench\.csv, line 2: "),
    ],
)
def test_a_file_that_is_no_benchmark_is_not_gone_on_with(tmp_path, content, message):
    path = tmp_path / "bench.csv"
    with CsvFile(path):
        pass
    content = content or path.read_bytes() + b"linear,many\r\n"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        CsvFile(path, resume=True)
    assert path.read_bytes() == content


def test_rows_that_an_editor_gave_other_line_ends_are_kept(tmp_path):
    path = tmp_path / "bench.csv"
    rows = [*rows_of([64, 128], ["linear"]).values()]
    with CsvFile(path) as file:
        for row in rows[:-1]:
            file.append(row)
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    with CsvFile(path, resume=True) as file:
        assert file.rows == rows[:-1]
        file.append(rows[-1])
    with CsvFile(path, resume=True) as file:
        assert file.rows == rows


def test_paper_table_has_speeds_at_1024_beside_13():
    rows = [*rows_of([1024], ["linear", "softmax"], budget=1e6).values()]
    assert paper_table(rows).cells[0] == (
        "Linear-InfSA against softmax, 1024×1024",
        "13×",
        "1.0× softmax, 0.5× softmax-fused",
    )
    assert paper_table([*rows_of([64], []).values()]).cells[0][2] == "not measured"


def test_command_line_keeps_what_was_measured_when_interrupted(monkeypatch, capsys, tmp_path):
    def interrupted(setting, repeats, budget):
        if setting.mechanism == "pure":
            raise KeyboardInterrupt
        return Measurement(0.25, repeats, 2**30, None)

    monkeypatch.setitem(run_bench.__kwdefaults__, "measure", interrupted)
    options = "--sizes 64 --mechanisms linear,pure --depth 1 --width 32 --heads 4 --device cpu"
    arguments = [*options.split(), "--json", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["infsa-explain", "bench", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    rows = json.loads(capsys.readouterr().out)
    assert [(row["mechanism"], row["seconds"]) for row in rows] == [(FUSED, 0.25), ("linear", 0.25)]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["bench.csv", "bench.md", "bench.png", "bench.svg"]
    assert len((tmp_path / "bench.csv").read_text().splitlines()) == 3
    assert "not measurable here" in (tmp_path / "bench.md").read_text()
