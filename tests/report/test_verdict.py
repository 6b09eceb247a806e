"""The verdict says what the numbers and their tests support, in every branch, and no more."""

from __future__ import annotations

import numpy as np
import pytest
from infsa_metrics import MeanInterval, paired_tests

from infsa_explain.evaluate.accuracy import AccuracySummary
from infsa_explain.evaluate.deletion_tables import MorfSummary
from infsa_explain.evaluate.localization import BoxSummary
from infsa_explain.evaluate.sanity import SanitySummary
from infsa_explain.report import AlignmentSummary, Difference, Report, Seeds
from infsa_explain.report.verdict import judge

ONE = Seeds(1, float("nan"))


def mean(value, low=None, high=None, n=50, excluded=0):
    return MeanInterval(
        value, value - 0.05 if low is None else low, value + 0.05 if high is None else high, n,
        excluded, units=n,
    )  # fmt: skip


def difference(value, p, n=50):
    return Difference(mean(value, n=n), p, 1.0)


def morf(method, aoc, random=None, centre=None, model="m", n=50):
    """A summary; ``random`` and ``centre`` are (difference, p)."""
    given = {"random": random, "centre": centre}
    over = {c: difference(*test, n=n) for c, test in given.items() if test}
    value = mean(aoc, n=n)
    return MorfSummary(model, method, "mean", 24, value, value, value, value, over, 0.0, ONE)


def boxes(method, ap, centre=None, model="m", prevalence=0.2):
    over = {"centre": difference(*centre)} if centre else {}
    measures = {"ap": mean(ap), "prevalence": mean(prevalence)}
    return BoxSummary(model, method, measures, over, 0, ONE)


def report(checkpoints=("",), **summaries):
    """A report whose summaries are given, of rows that say of which checkpoints they are."""
    made = Report([])
    made.summaries = summaries
    for measure, of in summaries.items():
        own = of["vectors"] if isinstance(of, dict) else of
        made.rows[measure] = [
            {"model": s.model, "checkpoint": c, "side": "left"} for s in own for c in checkpoints
        ]
    return made


CONTROLS = [morf("random", 0.3), morf("centre", 0.4)]


def paragraphs(found, measure):
    return next(finding.paragraphs for finding in found.findings if finding.measure == measure)


def test_a_map_that_beats_both_controls():
    found = judge(
        report(
            morf=[
                morf("visits", 0.6, (0.3, 0.001), (0.2, 0.02)),
                morf("katz", 0.5, (0.2, 0.001), (0.1, 0.05)),
                *CONTROLS,
            ]
        )
    )
    assert found.headline == (
        "By deletion, both maps beat `centre`, a fixed blob that looks at nothing."
    )
    assert paragraphs(found, "Deletion") == [
        "On `m`, `visits` has the highest MoRF-AOC of 2 maps, 60.0 [55.0, 65.0]: +30.0 [+25.0, "
        "+35.0] over `random` (p 0.001), and +20.0 [+15.0, +25.0] over `centre` (p 0.020). Both "
        "maps beat `centre`."
    ]
    assert found.cautions == [
        "One seed: of `m` a single training was measured. Intervals are over images; another "
        "training may come out differently."
    ]


@pytest.mark.parametrize(
    ("gain", "p", "beats"),
    [(0.1, 0.05, True), (0.1, 0.0501, False), (-0.1, 0.001, False), (0.1, 1.0, False)],
)
def test_beating_takes_a_gain_and_a_small_p(gain, p, beats):
    found = judge(report(morf=[morf("visits", 0.5, centre=(gain, p)), *CONTROLS]))
    does = "beats" if beats else "does not beat"
    assert f"the one map {does} `centre`" in found.headline
    assert ("which chance may explain" in found.text()) == (p > 0.05)
    assert ("beats `centre`" in found.text()) == beats


def test_which_maps_beat_the_blob_and_which_fall_behind_it():
    found = judge(
        report(
            morf=[
                morf("visits", 0.6, centre=(0.2, 0.02)),
                morf("katz", 0.5, centre=(0.1, 0.3)),
                morf("perron", 0.2, centre=(-0.2, 0.01)),
                *CONTROLS,
            ]
        )
    )
    assert found.headline.startswith("By deletion, 1 of 3 maps beat `centre`")
    assert paragraphs(found, "Deletion")[0].endswith(
        "1 of 3 maps beat `centre`: `visits`. Worse than it: `perron`."
    )


def test_none_beats_it():
    summaries = [morf(name, 0.4, centre=(0.01, 0.9)) for name in ("visits", "katz")]
    found = judge(report(morf=[*summaries, *CONTROLS]))
    assert found.headline.startswith("By deletion, none of 2 maps beats `centre`")
    assert "None of 2 maps beats `centre`." in paragraphs(found, "Deletion")[0]


def test_controls_are_never_the_best_and_untrained_maps_are_told_of():
    found = judge(
        report(
            morf=[
                morf("visits", 0.5, centre=(0.1, 0.01)),
                morf("untrained-visits", 0.9, centre=(0.5, 0.01)),
                morf("random", 0.95),
                morf("centre", 0.99),
            ]
        )
    )
    assert found.headline.endswith("(and so does the map of the model untrained).")
    (text,) = paragraphs(found, "Deletion")
    assert text.startswith("On `m`, `visits`, its only map, has a MoRF-AOC of 50.0")
    assert (
        "`untrained-visits` scores 90.0 [85.0, 95.0] and beats `centre` too: on these images that "
        "takes no training."
    ) in text


def test_an_untrained_map_that_does_not_beat_the_blob():
    summaries = [morf("visits", 0.5, centre=(0.1, 0.01))]
    summaries += [morf("untrained-visits", 0.4, centre=(0.0, 0.8)), *CONTROLS]
    found = judge(report(morf=summaries))
    assert "untrained" not in found.headline
    assert "scores 40.0 [35.0, 45.0] and does not beat `centre`." in found.text()


def test_without_the_blob_nothing_is_claimed():
    found = judge(report(morf=[morf("visits", 0.6, random=(0.3, 0.001)), CONTROLS[0]]))
    assert found.headline == (
        "Whether any map is better than a fixed blob in the middle is not known: no test."
    )
    assert "Nothing tests whether it beats `centre`" in found.text()
    assert "Not in the run: the control `centre`; there is no test against it." in found.cautions


def test_one_image_is_no_test():
    found = judge(report(morf=[morf("visits", 0.6, centre=(0.2, 1.0), n=1), *CONTROLS]))
    assert "not known: no test" in found.headline
    assert "+20.0 [—] over `centre` (no test)" in found.text()
    assert found.cautions[0].startswith("Few images: some means are over 1.")


def test_only_controls_or_no_defined_value():
    assert "only controls were measured" in judge(report(morf=CONTROLS)).text()
    nothing = morf("visits", float("nan"), centre=(float("nan"), float("nan")), n=0)
    assert "no image has a defined MoRF-AOC" in judge(report(morf=[nothing, *CONTROLS])).text()


def test_boxes_beside_the_prevalence():
    summaries = [boxes("visits", 0.7, (0.1, 0.01)), boxes("centre", 0.6), boxes("random", 0.2)]
    found = judge(report(boxes=summaries))
    assert found.headline.startswith("By boxes, the one map beats `centre`")
    (text,) = paragraphs(found, "Boxes")
    assert text.endswith("A constant map scores the prevalence, 20.0.")
    both = judge(report(morf=[morf("visits", 0.5, centre=(0.0, 0.9)), *CONTROLS], boxes=summaries))
    assert both.headline == (
        "By deletion, the one map does not beat `centre`, a fixed blob that looks at nothing; by "
        "boxes, the one map beats it."
    )


def test_areas_of_two_models_are_not_compared():
    two = [morf("visits", 0.5, centre=(0.1, 0.01), model=m) for m in "ab"]
    found = judge(report(morf=[*two, *CONTROLS]))
    assert found.headline.startswith("By deletion, both maps beat")
    assert len(paragraphs(found, "Deletion")) == 3  # a, b, and the controls' m
    assert found.cautions[-1].startswith("MoRF-AOC cannot be compared between models")


def test_seeds_and_number_of_images():
    many = [morf("visits", 0.5, centre=(0.1, 0.01)), *CONTROLS]
    assert judge(report(morf=many, checkpoints=("a", "b"))).cautions == []
    few = [morf("visits", 0.5, centre=(0.1, 0.01), n=29), *CONTROLS]
    (caution,) = judge(report(morf=few, checkpoints=("a", "b"))).cautions
    assert caution.startswith("Few images: some means are over 29. Below 30,")


def alignment(vector, cosine, behind=None, dead=0, left_out=0):
    test = difference(*behind) if behind else None
    value = mean(cosine)
    alive = mean(cosine + 0.02)
    return AlignmentSummary("m", vector, value, alive, value, value, test, 200, dead, left_out, ONE)


@pytest.mark.parametrize(
    ("behind", "text", "counts"),
    [
        ((-0.03, 0.002), "the weights are worse (p 0.002)", "in 0, and less well in 1"),
        ((0.03, 0.002), "the weights are better (p 0.002)", "in 1, and less well in 0"),
        ((0.03, 0.4), "no difference is found (p 0.400)", "in 0, and less well in 0"),
    ],
)
def test_alignment_is_told_beside_the_degree(behind, text, counts):
    vectors = [
        alignment("linear", 0.9, dead=2, left_out=1),
        alignment("degree", 0.93, behind),
        alignment("untrained", 0.99, (-0.09, 0.0004)),
    ]
    found = judge(report(align={"vectors": vectors, "layers": []}))
    (told,) = paragraphs(found, "Alignment")
    assert told == (
        "On `m`, the linear weights agree with the left Perron vector at cosine 0.900 [0.850, "
        f"0.950]. Plain in-degree has 0.930 [0.880, 0.980]: {text}. The model untrained has 0.990 "
        "[0.940, 1.040]: the weights are worse (p < 0.001). Dead heads, 1.0%, count as 0 in "
        "the first; without them it is 0.920 [0.870, 0.970]. Heads without one proven Perron "
        "vector, 0.5%, are left out."
    )
    assert f"better than plain in-degree does {counts}." in found.headline


def test_the_right_vector_goes_with_the_out_degree():
    made = report(
        align={"vectors": [alignment("linear", 0.9), alignment("degree", 0.8, (0.1, 0.01))]}
    )
    made.rows["align"][0]["side"] = "right"
    assert "right Perron vector" in judge(made).text() and "out-degree" in judge(made).headline


@pytest.mark.parametrize(
    ("rho", "text"),
    [
        (mean(0.9, 0.8, 1.0), "hardly changed, so that it shows little of what was learned: "),
        (mean(0.5, 0.4, 0.6), "part of the order is left: "),
        (mean(0.02, -0.1, 0.1), "no order is left that can be told from chance: "),
        (mean(-0.3, -0.4, -0.2), "part of the order is reversed: "),
        (mean(float("nan"), n=0, excluded=50), "undefined, for the map is constant: "),
        (mean(0.3, float("nan"), float("nan"), n=1), "tried on one image alone: "),
    ],
)
def test_what_is_left_when_all_weights_are_random(rho, text):
    def summary(method, value):
        return SanitySummary(
            "m", method, ("head", "embeddings"), (rho, value), (rho, value), rho, {}
        )

    found = judge(report(sanity=[summary("visits", rho), summary("centre", mean(1.0))]))
    (told,) = paragraphs(found, "Sanity")
    start = "With all weights of `m` random, by Spearman's ρ to the trained map, "
    assert told.startswith(f"{start}{text}`visits`") and "centre" not in told
    assert found.headline.startswith("This run compares no map with a control")


def test_many_maps_are_counted_not_listed():
    names = [f"map{i}" for i in range(6)]
    summaries = [morf(name, 0.2, centre=(-0.2, 0.01)) for name in names]
    found = judge(report(morf=[*summaries, *CONTROLS]))
    assert paragraphs(found, "Deletion")[0].endswith("Worse than it: 6 maps.")
    left = [mean(0.1 * i + 0.06, 0.01, 1.0) for i in range(6)]
    sanity = [
        SanitySummary("m", n, ("all",), (r,), (r,), r, {}) for n, r in zip(names, left, strict=True)
    ]
    (told,) = paragraphs(judge(report(sanity=sanity)), "Sanity")
    assert told.endswith("part of the order is left: 6 maps (0.06 to 0.56).")
    constant = mean(float("nan"), n=0, excluded=9)
    sanity = [
        SanitySummary("m", n, ("all",), (constant,), (constant,), constant, {}) for n in names
    ]
    (told,) = paragraphs(judge(report(sanity=sanity)), "Sanity")
    assert told.endswith("undefined, for the map is constant: 6 maps.")


def test_accuracy():
    found = judge(report(accuracy=[AccuracySummary("m", mean(0.6), mean(0.9), 0.1, ONE)]))
    assert paragraphs(found, "Accuracy") == [
        "`m` classifies 60.0 [55.0, 65.0]% of the images as they are labelled; a guess is right "
        "for 10.0%."
    ]


def test_from_rows_the_verdict_holds_what_the_tests_say():
    rng = np.random.default_rng(0)
    images = [f"image {i}" for i in range(40)]
    base = rng.random(40)
    aoc = {
        "visits": base + 0.2 + 0.1 * rng.random(40),
        "katz": base + 0.1 * rng.standard_normal(40),
        "random": base,
        "centre": base + 0.02 * rng.random(40),
    }
    rows = [
        {
            "measure": "morf", "image": image, "model": "m", "checkpoint": "", "method": method,
            "order": order, "fill": "mean", "aoc": float(values[i]), "auc": 0.5, "tied": 0.0,
            "fractions": [0, 1], "probabilities": [1, 0],
        }
        for method, values in aoc.items()
        for i, image in enumerate(images)
        for order in ("morf", "lerf")
    ]  # fmt: skip
    tests = paired_tests({method: (aoc[method], aoc["centre"]) for method in ("visits", "katz")})
    p = tests["visits"].p_value
    assert p < 0.05 < tests["katz"].p_value
    (told,) = paragraphs(judge(Report(rows)), "Deletion")
    gain = 100 * (aoc["visits"] - aoc["centre"]).mean()
    assert f"and +{gain:.1f} [" in told
    assert f"over `centre` (p {p:.3f})" in told or "over `centre` (p < 0.001)" in told
    assert told.endswith("1 of 2 maps beat `centre`: `visits`.")
