"""What tables tell of their devices, their runs and their links."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import exact, rows

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.report.kept_verdicts import ACCELERATOR, CPU, EMULATED_GPU, GPU, KNOWN_TO, device_of
from ddlbench_claims.evidence import COLUMNS, rows_of_tables
from ddlbench_claims.ledger import Claim, judge
from ddlbench_claims.needs import Needs
from ddlbench_claims.pooling import pooled
from ddlbench_claims.predicate import Predicate

KEPT = project_root() / "docs" / "validation"


@pytest.mark.parametrize(
    ("texts", "bed", "slow_down", "shrink"),
    [
        (["nan", "AMD EPYC", "cpu"], CPU, 1, 1),
        (["emulated compute: times of one-core, 4 times slower", "cpu"], ACCELERATOR, 4, 1),
        (["emulated compute: times of one-core | base differs", "cpu"], ACCELERATOR, 1, 1),
        (
            ["cpu", "a | emulated compute: times of pipedream, 16 times slower, 1/20 of the bytes"],
            EMULATED_GPU, 16, 20,
        ),
        (["emulated compute: times of h100, 1.5 times slower | b"], EMULATED_GPU, 1.5, 1),
        (["NVIDIA H100", "cuda"], GPU, 1, 1),
    ],
)  # fmt: skip
def test_results_say_what_they_were_measured_on(texts, bed, slow_down, shrink) -> None:
    device = device_of(texts)
    assert (device.bed, device.slow_down, device.shrink) == (bed, slow_down, shrink)


def test_devices_of_two_speeds_are_two_devices() -> None:
    remark = "emulated compute: times of one-core, {} times slower".format
    assert device_of([remark(4)]).name != device_of([remark(8)]).name


@pytest.mark.parametrize(
    ("bed", "table", "column"),
    [
        (CPU, "prediction/repeats_fast-link.csv", "first_run_error"),
        (ACCELERATOR, "emulated/repeats.csv", "difference"),
    ],
)
def test_what_one_run_is_known_to_is_what_repeats_say(bed, table, column) -> None:
    spreads = pd.read_csv(KEPT / table)
    spreads = spreads[(spreads["cells"] >= 5) & (spreads["strategy"] != "all")]
    assert KNOWN_TO[bed] == pytest.approx(spreads[column].max(), abs=6e-4)


def study(tmp_path, **more) -> pd.DataFrame:
    path = tmp_path / "cells.csv"
    pd.DataFrame(
        {
            "cell_id": ["d/n/sequential/1x1/batch_size=8/rep0", "d/n/ddp/1x2/batch_size=8/rep0"],
            "dataset": "d", "network": "n", "strategy": ["sequential", "ddp"],
            "geometry": ["1x1", "1x2"], "fabric": "default", "repeats": 3,
            "measured_step_s": [1.0, 0.5],
            "measured_low_s": [0.9, 0.4], "measured_high_s": [1.1, 0.6],
            "predictor": "ddlbench", "predicted_step_s": [1.1, 0.45], "device": "cpu", **more,
        }
    ).to_csv(path, index=False)  # fmt: skip
    return rows_of_tables([path])


def test_speeds_and_predictions_of_a_studys_cells(tmp_path) -> None:
    made = pooled(study(tmp_path))
    assert list(made.columns) == [*COLUMNS]
    speed = made[made["kind"] == "speed"].set_index("strategy")
    assert speed.loc["ddp", "samples_per_s"] == pytest.approx(16)
    assert speed.loc["ddp", "speedup"] == pytest.approx(2.0)
    assert speed.loc["ddp", "efficiency"] == pytest.approx(1.0)
    error = made[made["kind"] == "prediction"].set_index("strategy")
    assert error.loc["sequential", "signed_error"] == pytest.approx(0.1)
    assert error.loc["ddp", "absolute_error_low"] == 0  # the interval holds the prediction
    assert error.loc["ddp", "absolute_error_high"] == pytest.approx(0.25)


def test_a_predictor_that_saw_a_part_of_the_runs_makes_no_second_measurement(tmp_path) -> None:
    cell = "d/n/ddp/1x2/batch_size=8/rep0"
    made = study(
        tmp_path, cell_id=cell, strategy="ddp", geometry="1x2", measured_step_s=[0.6, 0.5],
        repeats=[2, 3], predictor=["data-extrapolation", "ddlbench"],
    )  # fmt: skip
    speed = made[made["kind"] == "speed"]
    assert (len(speed), speed["step_s"].iloc[0], speed["runs"].iloc[0]) == (1, 0.5, 3)


def test_defaults_that_a_path_leaves_out_are_known(tmp_path) -> None:
    made = study(tmp_path, strategy=["gpipe", "pipe-1f1b"], geometry="1x4")
    assert set(made["chunks"]) == {4.0}
    frame = study(tmp_path, strategy="gpipe", cell_id="d/n/gpipe/1x4/batch_size=8+chunks=2/rep0")
    assert set(frame["chunks"]) == {2.0}
    assert set(frame["micro_batch"]) == {4.0}


def test_partitions_that_take_turns_do_not_compute_at_once(tmp_path) -> None:
    made = study(tmp_path, strategy=["gpipe", "pipe-gpipe"])
    assert made.groupby("strategy")["at_once"].first().to_dict() == {
        "gpipe": False, "pipe-gpipe": True,
    }  # fmt: skip
    emulated = study(tmp_path, strategy="gpipe", device="emulated compute: times of one-core")
    assert emulated["at_once"].all()


def test_a_link_is_as_fast_as_its_devices_see_it(tmp_path) -> None:
    made = study(
        tmp_path, geometry="2x4", link_bits_per_s=125e6, link_inside_bits_per_s=[None, 1e9],
        notes="emulated compute: times of pipedream, 16 times slower, 1/20 of the bytes",
    )  # fmt: skip
    assert set(made["gbit_per_s"]) == {40.0}
    assert made[made["kind"] == "speed"]["inside"].tolist() == [False, True]


def test_a_table_without_devices_has_those_beside_it_or_is_refused(tmp_path) -> None:
    path = tmp_path / "gpipe_step.csv"
    spans = [("forward", 0, 0.0, 1.0), ("forward", 1, 1.5, 2.5), ("backward", 1, 2.5, 4.5)]
    pd.DataFrame(spans, columns=["kind", "micro_batch", "start_s", "end_s"]).assign(
        dataset="d", network="n", geometry="1x2", partition=0
    ).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="does not say what it was measured on"):
        rows_of_tables([path])
    assert set(rows_of_tables([path], GPU)["bed"]) == {GPU}
    pd.DataFrame({"notes": ["emulated compute: times of h100"]}).to_csv(tmp_path / "cells.csv")
    span = pooled(rows_of_tables([path])).iloc[0]
    assert span["bed"] == EMULATED_GPU
    assert span["forward_over_backward"] == pytest.approx(2.5 / 2.0)
    assert span["gap_over_compute"] == pytest.approx(0.5)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "", "a,b\n1,2,3\n4\n"])
def test_a_table_of_another_kind_is_refused(tmp_path, content) -> None:
    path = tmp_path / "other.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"neither speedup, samples_per_s|not a CSV table"):
        rows_of_tables([path], CPU)


def test_a_word_among_numbers_is_refused_with_its_line(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"cells.csv: line 3: 'fast' in column measured_step_s"):
        study(tmp_path, measured_step_s=[1.0, "fast"])


def test_repeats_are_pooled_and_tell_their_own_interval() -> None:
    first, second = ({"samples_per_s": v, "geometry": "1x4"} for v in (10.0, 14.0))
    made = pooled(rows(first, second)).iloc[0]
    assert (made["samples_per_s"], made["runs"]) == (12.0, 2)
    assert (made["samples_per_s_low"], made["samples_per_s_high"]) == (10.0, 14.0)


def test_one_run_is_known_to_what_repeats_of_its_bed_say() -> None:
    for bed, share in KNOWN_TO.items():
        steps = {"samples_per_s": 10.0, "samples_per_s_low": 9.999, "samples_per_s_high": 10.001}
        made = pooled(rows({**steps, "bed": bed})).iloc[0]
        assert made["samples_per_s_low"] == pytest.approx(10 * (1 - share))
        assert made["samples_per_s_high"] == pytest.approx(10 * (1 + share))


def test_two_runs_that_agree_by_luck_are_known_to_the_root_of_two_closer() -> None:
    made = pooled(rows({"step_s": 1.0}, {"step_s": 1.0001})).iloc[0]
    assert made["step_s_high"] == pytest.approx(1 + KNOWN_TO[CPU] / 2**0.5, rel=1e-3)


def test_a_run_that_two_tables_keep_counts_once() -> None:
    kept = {"samples_per_s": 10.123456, "step_s": 0.3, "latency_ms": 2.0}
    made = pooled(rows({**kept, "latency_ms": None, "samples_per_s": 10.1235}, kept)).iloc[0]
    assert (made["runs"], made["latency_ms"]) == (1, 2.0)


def test_a_pipeline_is_measured_against_the_bubble_of_its_micro_batches() -> None:
    made = pooled(rows({"speedup": 16 / 7, "chunks": 4}, {"speedup": 32 / 11, "chunks": 8}))
    assert made["share_of_bubble"].tolist() == pytest.approx([1.0, 1.0])


# --- needs and beds -----------------------------------------------------------------------------


def claim(test: Predicate, **needs) -> Claim:
    return Claim("c", "it is", "paper", "ddlbench/fig4", "GPUs", test, Needs(**needs))


FAST = Predicate(kind="bound", metric="speedup", least=2.0)


def test_beds_are_never_pooled() -> None:
    made = rows(exact("a", 3.0), exact("a", 1.0, bed=EMULATED_GPU, device="x"))
    verdicts = {
        judgement.bed: (judgement.finding.verdict, judgement.finding.n)
        for judgement in judge([claim(FAST)], made)
    }
    assert verdicts == {CPU: ("holds", 1), EMULATED_GPU: ("refuted", 1)}


@pytest.mark.parametrize(
    ("needs", "has", "lacks", "missing"),
    [
        ({"at_once": True}, {}, {"at_once": False}, "devices that compute at the same time"),
        ({"inside": True}, {"inside": True}, {}, "a link inside a node, as GPUs have"),
        (
            {"gbit_per_s": 40}, {"nodes": 2, "gbit_per_s": 39.9}, {"nodes": 2, "gbit_per_s": 10},
            "40 Gbit/s between nodes",
        ),
        ({"gbit_per_s": 40}, {}, {"nodes": 2}, "40 Gbit/s between nodes"),
        ({"chunks": 12}, {"chunks": 12}, {"chunks": 4}, "pipelines of 12 micro-batches or more"),
        ({"chunks": 12}, {"chunks": None}, {"chunks": 4}, "pipelines of 12 micro-batches or more"),
        (
            {"each": {"network": ["vgg11"]}}, {}, {"network": "vgg16"}, "cells of network vgg11",
        ),
        (
            {"each": {"devices": [8]}}, {"devices": 8.0}, {}, "cells of devices 8",
        ),
    ],
)  # fmt: skip
def test_rows_without_what_a_claim_needs_do_not_test_it(needs, has, lacks, missing) -> None:
    fast_claim = claim(FAST, **needs)
    (judgement,) = judge([fast_claim], rows(exact("a", 3.0, **has)))
    assert (judgement.finding.verdict, judgement.lacks) == ("holds", ())
    (judgement,) = judge([fast_claim], rows(exact("a", 3.0, **lacks)))
    assert (judgement.finding.verdict, judgement.lacks) == ("not testable here", (missing,))
    assert missing in fast_claim.needs.in_words()
    # A row beside it that lacks the need does not count.
    other = exact("a", 1.0, batch_size=7, **lacks)
    if "each" not in needs:
        (judgement,) = judge([fast_claim], rows(exact("a", 3.0, **has), other))
        assert (judgement.finding.verdict, judgement.finding.n) == ("holds", 1)


@pytest.mark.parametrize(
    ("needs", "beds"),
    [
        ({"device": "gpu"}, {EMULATED_GPU, GPU}),
        ({"device": "real"}, {CPU, GPU}),
        ({"device": "real-gpu"}, {GPU}),
        ({"overlap": True}, {ACCELERATOR, EMULATED_GPU, GPU}),
        ({"runtime": "another library"}, set()),
    ],
)
def test_what_a_bed_lacks_is_known_without_a_row(needs, beds) -> None:
    for bed in KNOWN_TO:
        (judgement,) = judge([claim(FAST, **needs)], rows({"bed": bed, "step_s": 1.0}))
        wanted = "not measured" if bed in beds else "not testable here"
        assert (bed, judgement.finding.verdict) == (bed, wanted)
        assert bool(judgement.lacks) is (bed not in beds)


def test_a_verdict_says_on_how_little_it_rests() -> None:
    (judgement,) = judge([claim(FAST)], rows(exact("a", 3.0)))
    assert judgement.rests_on == "one case, one run a cell"
    twice = rows(exact("a", 3.0), exact("a", 3.1), exact("a", 3.2, batch_size=7))
    (judgement,) = judge([claim(FAST)], twice)
    assert judgement.rests_on == "2 cases, 1 to 2 runs a cell"


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_the_order_of_rows_decides_nothing(data) -> None:
    values = st.sampled_from([0.5, 1.0, 1.04, 1.5, 2.0])
    drawn = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "strategy": st.sampled_from(["a", "b"]), "speedup": values,
                    "batch_size": st.sampled_from([24, 24.0, 48]),
                    "network": st.sampled_from(["vgg11", "vgg16"]),
                    "base_s": st.sampled_from([0.1, 0.3]), "latency_ms": st.sampled_from([None, 1]),
                }
            ),
            min_size=1, max_size=8,
        )
    )  # fmt: skip
    shuffled = data.draw(st.permutations(drawn))
    tests = [
        Predicate(kind="compare", metric="speedup", left={"strategy": "a"},
                  right={"strategy": "b"}, least=1.0, by=("network",)),
        Predicate(kind="best", metric="speedup", values=("a",), by=("network",)),
        Predicate(kind="bound", metric="speedup", of="mean", most=1.2),
        Predicate(kind="trend", metric="speedup", along="batch_size", order=(24, 48), least=1.0,
                  by=("network",)),
        Predicate(kind="trend", metric="speedup", along="base_s", order=("least", "most"),
                  least=1.0, by=("strategy",)),
    ]  # fmt: skip
    ledger = [claim(test) for test in tests]
    assert judge(ledger, rows(*drawn)) == judge(ledger, rows(*shuffled))
