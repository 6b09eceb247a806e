"""Alignment's tables from rows whose means are known by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from infsa_metrics import bootstrap_mean, paired_tests

from infsa_explain.report import (
    ALIGNMENT_HEADINGS,
    LAYER_HEADINGS,
    alignment_table,
    layers_table,
    plot_alignment,
    summarise_alignment,
    summarise_layers,
    write_report,
)

IMAGES, LAYERS, HEADS = 6, 2, 2
VECTORS = ("linear", "degree", "uniform")
rng = np.random.default_rng(0)
COSINE = {v: rng.uniform(0.5, 1, (IMAGES, LAYERS, HEADS)) for v in VECTORS}


def rows(dead=(), model="m", left_out=()):
    """One row per image, layer and head.

    Of (layer, head) ``dead`` have no weights, and those in ``left_out`` no Perron vector.
    """
    return [
        {
            "measure": "align",
            "image": f"image {i}",
            "model": model,
            "checkpoint": "",
            "layer": layer,
            "head": head,
            "value": 0.5 + 0.1 * layer,
            "second": 0.25,
            "gap": 0.4,
            "error_bound": 1e-7 * (1 + layer) if (layer, head) not in left_out else None,
            "converged": (layer, head) not in left_out,
            "unique": (layer, head) not in left_out,
            "resolved": (layer, head) not in left_out,
            "left_out": list(VECTORS) if (layer, head) in left_out else [],
            "dead": (layer, head) in dead,
            "invalid_rows": 0.1 * head,
            "seconds": 0.5,
            **{
                measure: {
                    v: None
                    if (layer, head) in (*dead, *left_out)
                    or (measure != "cosine" and v == "uniform")
                    else float(COSINE[v][i, layer, head])
                    for v in VECTORS
                }
                for measure in ("cosine", "centred", "spearman")
            },
        }
        for i in range(IMAGES)
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]


def test_means_are_over_images_of_the_mean_over_layers_and_heads():
    for s in summarise_alignment(rows()):
        expected = COSINE[s.vector].mean((1, 2))
        assert s.cosine == bootstrap_mean(expected)
        assert s.cosine.n == IMAGES
        if s.vector == "uniform":
            assert (s.centred.mean, s.spearman.mean) == (0, 0)  # no rank, no correlation
        else:
            assert s.centred == s.spearman == s.cosine


def test_half_dead_does_not_come_out_well():
    alive = {s.vector: s for s in summarise_alignment(rows())}
    half = {s.vector: s for s in summarise_alignment(rows(dead=[(0, 0), (1, 1)]))}
    cosine = COSINE["linear"][:, [0, 1], [1, 0]].sum(-1) / 4
    assert half["linear"].cosine.mean == pytest.approx(cosine.mean(), abs=1e-12)
    assert half["linear"].cosine.mean < 0.6 * alive["linear"].cosine.mean
    assert (half["linear"].dead, half["linear"].heads, half["linear"].left_out) == (12, 24, 0)
    alone = COSINE["linear"][:, [0, 1], [1, 0]].mean(-1)
    assert half["linear"].alive == bootstrap_mean(alone)
    assert alive["linear"].alive == alive["linear"].cosine
    assert [s.dead for s in summarise_layers(rows(dead=[(0, 0), (1, 1)]))] == [0.5, 0.5]


def test_the_weights_are_compared_with_every_other_vector():
    table = rows() + rows(model="other")
    summaries = [s for s in summarise_alignment(table) if s.vector != "linear"]
    a = COSINE["linear"].mean((1, 2))
    tests = paired_tests({v: (a, COSINE[v].mean((1, 2))) for v in VECTORS[1:]})
    for s in summaries:  # of either model alone
        assert s.behind.interval.mean == pytest.approx(tests[s.vector].difference, abs=1e-12)
        assert s.behind.p_value == tests[s.vector].p_value
    assert all(s.behind is None for s in summarise_alignment(table) if s.vector == "linear")


def test_layers():
    first, second = summarise_layers(rows())
    assert (first.value, second.value) == pytest.approx((0.5, 0.6))
    assert (first.error_bound, second.error_bound) == (1e-7, 2e-7)
    assert first.unresolved == second.unresolved == second.ambiguous == 0
    assert second.invalid_rows == pytest.approx(0.05)
    assert second.seconds == pytest.approx(0.5 * HEADS)
    assert second.cosine == bootstrap_mean(COSINE["linear"][:, 1].mean(-1))


def test_heads_without_a_perron_vector_are_in_no_mean():
    """One of four is left out, one is dead: over three, and over the two that are alive."""
    table = rows(dead=[(0, 0)], left_out=[(1, 1)])
    for s in summarise_alignment(table):
        known = COSINE[s.vector][:, [0, 1], [1, 0]]
        np.testing.assert_allclose(s.cosine.mean, (known.sum(-1) / 3).mean(), rtol=1e-14)
        np.testing.assert_allclose(s.alive.mean, known.mean(), rtol=1e-14)
        assert (s.dead, s.left_out, s.heads) == (6, 6, 24)
        assert s.cosine.n == IMAGES
    cells = dict(
        zip(ALIGNMENT_HEADINGS, alignment_table(summarise_alignment(table))[0], strict=True)
    )
    assert (cells["dead"], cells["unresolved"]) == ("6 of 24", "6 of 24")
    first, second = summarise_layers(table)
    assert (first.unresolved, second.unresolved) == (0, 0.5)
    assert (first.error_bound, second.error_bound) == (1e-7, 2e-7)


def test_an_image_without_any_perron_vector_is_excluded():
    table = rows()
    for row in table:
        if row["image"] == "image 0":
            row |= {"left_out": list(VECTORS), "cosine": dict.fromkeys(VECTORS)}
    for s in summarise_alignment(table):
        assert (s.cosine.n, s.cosine.excluded, s.alive.n) == (IMAGES - 1, 1, IMAGES - 1)
        np.testing.assert_allclose(s.cosine.mean, COSINE[s.vector][1:].mean(), rtol=1e-14)


def test_several_vectors_are_not_unresolved():
    table = rows(left_out=[(0, 1)])
    for row in table:
        row["resolved"] = True
    assert [(s.ambiguous, s.unresolved) for s in summarise_layers(table)] == [(0.5, 0), (0, 0)]


def test_rows_of_older_runs_are_read():
    table = [
        {key: value for key, value in row.items() if key not in ("resolved", "left_out")}
        for row in rows()
    ]
    assert summarise_alignment(table) == summarise_alignment(rows())


def test_tables_and_files(tmp_path):
    table = rows(dead=[(1, 0)])
    assert {len(r) for r in alignment_table(summarise_alignment(table))} == {
        len(ALIGNMENT_HEADINGS)
    }
    assert {len(r) for r in layers_table(summarise_layers(table))} == {len(LAYER_HEADINGS)}
    write_report(tmp_path, table)
    summary = json.loads((tmp_path / "summary.json").read_text())["align"]
    assert "published: cosine 0.985" in (tmp_path / "summary.md").read_text()
    assert [v["vector"] for v in summary["vectors"]] == list(VECTORS)
    assert [v["layer"] for v in summary["layers"]] == [0, 1]
    assert (tmp_path / "summary.md").read_text().count("\n| m |") == 3 + 2
    assert (tmp_path / "alignment.png").stat().st_size > 10_000


def test_the_picture_leaves_dead_heads_white():
    figure = plot_alignment(rows(dead=[(1, 0)]))
    grid = figure.axes[0].images[0].get_array()
    assert np.isnan(np.ma.filled(grid, np.nan)[1, 0])
    assert grid[0, 1] == pytest.approx(COSINE["linear"][:, 0, 1].mean())
