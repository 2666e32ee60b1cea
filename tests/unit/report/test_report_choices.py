"""Tables 8.1 and 8.2 as people read them, and the printed numbers beside ours."""

import pandas as pd
import pytest
from figure_checks import assert_no_overlap, assert_readable

from ddlbench.predict.recommender_score import COLUMNS_8_1, table_8_2
from ddlbench.report import published
from ddlbench.report.choice_tables import (
    PUBLISHED,
    beside_printed,
    choices_by_case,
    markdown,
    rates_by_recommender,
    write_choices,
)
from ddlbench.report.figures.choice import draw_ways, ways
from ddlbench.report.style import style


def case(dataset, recommender, recommended, extra_time, **changes):
    values = {
        "recommender": recommender,
        "baseline": recommender == "horovod-unless-oom",
        "dataset": dataset,
        "network": "vgg11",
        "nodes": 1,
        "devices_per_node": 4,
        "batch_size": 64,
        "fabric": "default",
        "case": f"{dataset}/vgg11",
        "candidates": 2,
        "recommended": recommended,
        "tied": 0,
        "fastest": "horovod",
        "extra_time": extra_time,
        "correct": float(extra_time == 0),
        "within_noise": float(extra_time == 0),
        "not_run": 0.0,
        "note": "",
    }
    return {**values, **changes}


@pytest.fixture
def cases():
    nan = float("nan")
    return pd.DataFrame(
        [
            case("mnist", "thesis", "gpipe", 0.25),
            case("mnist", "horovod-unless-oom", "horovod", 0.0),
            case("cifar10", "thesis", "gpipe", 0.02, within_noise=1.0),
            case("cifar10", "horovod-unless-oom", "", nan),
        ],
        columns=list(COLUMNS_8_1),
    )


def test_a_row_a_case_with_the_cost_of_a_wrong_choice(cases):
    by_dataset = choices_by_case(cases).set_index("dataset")
    assert by_dataset.loc["MNIST", "fastest"] == "Horovod"
    assert by_dataset.loc["MNIST", "thesis"] == "GPipe (+25%)"
    assert by_dataset.loc["MNIST", "horovod-unless-oom"] == "Horovod"
    assert by_dataset.loc["CIFAR-10", "thesis"] == "GPipe (+2% ~)"
    assert by_dataset.loc["CIFAR-10", "horovod-unless-oom"] == "none"
    printed = by_dataset.loc["MNIST", PUBLISHED]
    assert printed == "GPipe (+92%, fastest Horovod)"
    assert "batch" not in by_dataset.columns


def test_a_tie_and_what_is_not_scored_say_so(cases):
    nan = float("nan")
    both = "horovod or gpipe"
    tie = case("mnist", "linear", both, 0.5, tied=2, correct=0.5, within_noise=0.5)
    learnt = case("mnist", "data-extrapolation", "gpipe", nan, correct=nan, within_noise=nan)
    table = pd.concat([cases, pd.DataFrame([tie, learnt])])
    by_dataset = choices_by_case(table).set_index("dataset")
    assert by_dataset.loc["MNIST", "linear"] == "tie of 2 (50% right, +50%)"
    assert by_dataset.loc["MNIST", "data-extrapolation"] == "GPipe (not scored)"
    rates = rates_by_recommender(table_8_2(table)).set_index("recommender")
    assert (rates.loc["linear", "all"], rates.loc["linear", "ties"]) == ("0.5/1", "1")
    row = rates.loc["data-extrapolation"]
    assert (row["all"], row["not scored"], row["mean extra time"]) == ("0/0", "1", "")
    assert row["remark"].startswith("not scored")


def test_the_print_stands_beside_other_geometries_and_says_its_own(cases):
    by_dataset = choices_by_case(cases.assign(devices_per_node=2)).set_index("dataset")
    assert "4 GPUs" in PUBLISHED
    assert by_dataset.loc["MNIST", PUBLISHED] == "GPipe (+92%, fastest Horovod)"


def test_the_tables_of_a_paper_have_the_printed_values_in_columns(cases):
    row = beside_printed(cases).iloc[0]
    assert (row.printed_recommended, row.printed_fastest) == ("gpipe", "horovod")
    assert len(beside_printed(cases)) == len(cases)
    rates = beside_printed(table_8_2(cases)).set_index(["recommender", "dataset"])
    assert tuple(rates.loc[("thesis", "mnist"), ["printed_correct", "printed_n"]]) == (3, 6)
    assert tuple(rates.loc[("thesis", "all"), ["printed_correct", "printed_n"]]) == (16, 24)
    elsewhere = beside_printed(cases.assign(network="stack"))
    assert elsewhere["printed_fastest"].isna().all()


def test_cases_that_differ_in_batch_or_fabric_say_so(cases):
    slow = cases.assign(fabric="slow", case=cases["case"] + "/slow")
    rows = choices_by_case(pd.concat([cases, slow]))
    assert set(rows["fabric"]) == {"default", "slow"}


def test_rates_stand_above_the_printed_ones(cases):
    rates = rates_by_recommender(table_8_2(cases)).set_index("recommender")
    assert rates.loc["thesis", "all"] == "0/2"
    assert rates.loc["thesis", "within noise"] == "50%"
    rule = rates.loc["horovod-unless-oom (baseline)"]
    assert (rule["MNIST"], rule["CIFAR-10"], rule["no answer"]) == ("1/1", "0/1", "1")
    assert rule["remark"].startswith("not discriminating")
    assert rates.iloc[-1]["all"] == "16/24"
    assert (rates.iloc[-1]["MNIST"], rates.iloc[-1]["CIFAR-10"]) == ("3/6", "1/6")


def test_markdown_escapes_what_would_break_a_table():
    page = markdown("A title", pd.DataFrame({"a": ["1|2"], "b": [3]}), ["a note"])
    assert page.splitlines() == [
        "# A title",
        "",
        "a note",
        "",
        "| a | b |",
        "|---|---|",
        r"| 1\|2 | 3 |",
    ]


def test_no_case_is_a_page_too(tmp_path, cases):
    none = cases.iloc[:0]
    write_choices(none, table_8_2(none), (none, table_8_2(none)), tmp_path)
    for name in ("table_8_1", "table_8_2"):
        assert "Nothing to compare" in (tmp_path / f"{name}.md").read_text()


def test_printed_numbers_are_those_of_the_thesis():
    """Sec. 4.3, 5.2 and 6.3 name the worst deviations; Sec. 8.2 the rate of right choices."""
    sequential = published.deviations("sequential", "sequential", "1x1", None)
    assert len(sequential) == 23
    assert sequential["signed_error"].abs().max() == pytest.approx(0.148, abs=5e-4)
    horovod = published.deviations("horovod", "thesis-5.1-p2p", "1x4", None)
    assert set(horovod["where"]) >= {"Fig. 5.1"}
    assert not horovod.duplicated(["network", "dataset"]).any()
    assert horovod["signed_error"].min() == pytest.approx(-0.396, abs=5e-4)
    assert set(published.deviations("horovod", "thesis-5.1-p2p", "4x4", None)["dataset"]) == {
        "imagenet"
    }
    gpipe = published.deviations("gpipe", "thesis-6", "1x4", None)
    assert gpipe["signed_error"].min() == pytest.approx(-0.76, abs=5e-3)
    assert gpipe["signed_error"].max() == pytest.approx(-0.20, abs=5e-3)
    assert len(published.deviations("gpipe", "thesis-6", "1x2", None)) == len(
        gpipe
    )  # printed for 1x4
    assert published.deviations("horovod", "thesis-5.1-p2p", "1x2", None).empty
    assert published.deviations("ddp", "ddp-buckets", "1x4", None).empty
    choices = published.choices()
    assert (choices["recommended"] == choices["fastest"]).sum() == 16
    assert len(choices) == 24


def test_ways_to_choose_are_judged_case_by_case() -> None:
    """Means of cases; device time over that of whole epochs, and over that of short cells."""
    case = {"best": "ddp", "best_step_s": 1.0, "device_s_everything": 1000.0, "device_s_all": 100.0}
    case |= {"case": "cifar10/vgg11/1/2/default/16", "profile_s": 0.0}
    right = {**case, "picked": "ddp", "picked_step_s": 1.0, "within_noise": True}
    wrong = {**case, "picked": "horovod", "picked_step_s": 1.5, "within_noise": False}
    rows = [
        {"way": "everything", **right, "device_s": 1000.0},
        {"way": "recommender", **right, "device_s": 10.0, "profile_s": 10.0},
        {
            "way": "recommender",
            **wrong,
            "device_s": 30.0,
            "profile_s": 10.0,
            "case": "cifar10/vgg11/2/1/default/16",
        },
    ]
    actual = ways(pd.DataFrame(rows)).set_index("way")
    assert dict(actual.loc["recommender"]) == pytest.approx(
        {"cases": 2, "right": 0.5, "within_noise": 0.5, "regret": 0.25,
         "device_share": 0.02, "short_share": 0.2, "shared_profile_share": 0.15}
    )  # fmt: skip
    assert actual.loc["everything", "device_share"] == 1.0
    with style():
        figure, table = draw_ways(pd.DataFrame(rows))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    assert list(table["way"]) == ["everything", "recommender"]
