"""Printed values beside ours: what may stand in one row, and what has no ratio."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.config import Paper, PaperFile
from ddlbench.report.comparison import (
    bed_of,
    compared,
    comparison_csv,
    comparison_markdown,
)
from ddlbench.report.papers_page import FigureResults
from ddlbench.report.published import PRINTED_COLUMNS, printed_values
from ddlbench.report.tables import MEASUREMENTS

EMULATED = "emulated compute: times of titan, 4 times slower"


def paper(
    draws: tuple[str, ...] = ("speedup",), published: tuple[str, ...] = ("thesis/fig3.1",)
) -> PaperFile:
    return PaperFile(Paper("thesis/fig3.1", "", "", "", "", "", draws, published))


def printed(**changed: object) -> pd.DataFrame:
    """One printed speed-up, of 2."""
    row = {
        "figure": "thesis/fig3.1", "quantity": "speed-up", "dataset": "mnist",
        "network": "vgg16", "strategy": "horovod", "geometry": "1x4", "condition": "",
        "published": 2.0, "where": "Fig. 3.1a", "how": "read off",
    }  # fmt: skip
    return pd.DataFrame([row | changed])[PRINTED_COLUMNS]


def cell(repeat: int = 0, **changed: object) -> dict[str, object]:
    """One measured cell, of speed-up 3."""
    row = {
        "site": "local", "dataset": "mnist", "network": "vgg16", "strategy": "horovod",
        "geometry": "1x4", "nodes": 1, "devices_per_node": 4, "workers": 4, "batch_size": 8,
        "fabric": "default", "status": "ok", "repeat": repeat, "epoch_s": 1.0, "speedup": 3.0,
        "dataset_samples": 30, "samples_per_s": 30.0, "base_samples_per_s": 10.0,
        "step_median_s": 0.5, "step_low_s": 0.5, "step_high_s": 0.5, "device_kind": "cpu",
        "processors": EMULATED, "created": "2026-11-23T21:44:24+00:00",
    } | changed  # fmt: skip
    name = f"{row['dataset']}/{row['network']}/{row['strategy']}/{row['geometry']}"
    base = f"{row['dataset']}/{row['network']}/sequential/1x1"
    cell_id = f"{name}/batch_size={row['batch_size']}/rep{repeat}"
    return {"cell_id": cell_id, "base_cell_id": f"{base}/batch_size=8/rep{repeat}"} | row


def base(repeat: int = 0, **changed: object) -> dict[str, object]:
    """The sequential cell that it is a ratio to."""
    return cell(
        repeat, strategy="sequential", geometry="1x1", devices_per_node=1, workers=1, epoch_s=3.0,
        speedup=1.0, **changed,
    )  # fmt: skip


def results(
    folder: Path, *cells: dict[str, object], draws: tuple[str, ...] = ("speedup",)
) -> list[FigureResults]:
    table = pd.DataFrame(cells).reindex(columns=[column.name for column in MEASUREMENTS])
    table.to_csv(folder / "cells.csv", index=False)
    return [FigureResults(folder, "", draws)]


def test_a_pair_has_a_ratio_a_bed_and_its_repeats(tmp_path) -> None:
    made = compared(paper(), results(tmp_path, base(0), base(1), cell(0), cell(1)), printed())
    (row,) = made.to_dict("records")
    assert (row["published"], row["measured"], row["ratio"]) == (2.0, pytest.approx(3.0), 1.5)
    assert (row["devices"], row["bed"], row["repeats"]) == (4, "emulated GPU", 2)
    assert row["where"] == "Fig. 3.1a"


@pytest.mark.parametrize(
    "other",
    [
        {"dataset": "cifar10"},
        {"network": "vgg11"},
        {"network": "vgg11|vgg16"},
        {"strategy": "ddp"},
        {"geometry": "2x4"},
        {"geometry": "4x1"},
        {"quantity": "images/s"},
    ],
)
def test_values_of_other_things_stand_alone_without_a_ratio(tmp_path, other) -> None:
    made = compared(paper(), results(tmp_path, base(), cell()), printed(**other))
    assert len(made) == 2
    assert made["ratio"].isna().all()
    assert made["published"].notna().sum() == made["measured"].notna().sum() == 1


def test_a_value_of_another_figure_is_in_no_row(tmp_path) -> None:
    elsewhere = printed(figure="thesis/fig3.2")
    made = compared(paper(), results(tmp_path, base(), cell()), elsewhere)
    assert made["published"].isna().all()


def test_a_figure_that_is_printed_twice_takes_the_values_that_its_file_names(tmp_path) -> None:
    other = paper(published=("thesis/fig3.2",))
    made = compared(other, results(tmp_path, base(), cell()), printed(figure="thesis/fig3.2"))
    assert made["ratio"].tolist() == [pytest.approx(1.5)]


def test_a_value_that_was_guessed_has_no_ratio(tmp_path) -> None:
    guessed = printed(how="text; the network is not named")
    (row,) = compared(paper(), results(tmp_path, base(), cell()), guessed).to_dict("records")
    assert (row["published"], pd.isna(row["ratio"])) == (2.0, True)


def test_failures_of_either_side_are_remarks(tmp_path) -> None:
    failed = cell(status="out_of_memory", speedup=None, epoch_s=None)
    made = compared(paper(), results(tmp_path, base(), failed), printed(published=float("nan")))
    (row,) = made.to_dict("records")
    assert row["remark"] == "read off; failed there; out_of_memory here"


def test_conditions_of_links_must_be_the_same(tmp_path) -> None:
    shaped = {
        "strategy": "parameter-server", "speedup": None, "base_cell_id": "", "link_latency_s": 0.01,
        "link_bits_per_s": 1e9, "link_loss": 0.0,
    }  # fmt: skip
    ours = results(tmp_path, cell(**shaped), draws=("latency",))
    theirs = {"quantity": "images/s", "strategy": "parameter-server", "published": 60.0}
    same = printed(**theirs, condition="batch 8, 10 ms, 1000 Mbit/s, 0 % loss")
    other = printed(**theirs, condition="batch 8, 100 ms, 1000 Mbit/s, 0 % loss")
    both = compared(paper(("latency",)), ours, pd.concat([same, other]))
    assert both["ratio"].dropna().tolist() == [pytest.approx(0.5)]
    assert len(both) == 2


def test_a_deviation_is_compared_as_predicted_over_measured(tmp_path) -> None:
    (tmp_path / "deviation_horovod.csv").write_text(
        "source,strategy,predictor,geometry,network,dataset,signed_error,repeats,mark\n"
        "measured here,horovod,eq,1x4,vgg16,mnist,0.2,3,\n"
        "Jansen 2020,horovod,eq,1x4,vgg16,mnist,-0.9,,\n"
    )
    ours = results(tmp_path, base(), cell(), draws=("deviation_horovod",))
    theirs = printed(quantity="predicted / measured", condition="eq", published=0.6)
    (row,) = compared(paper(("deviation_horovod",)), ours, theirs).to_dict("records")
    assert (row["ratio"], row["repeats"]) == (pytest.approx(2.0), 3)


def test_a_figure_without_results_has_its_printed_values(tmp_path) -> None:
    made = compared(paper(), [FigureResults(tmp_path, "", ("speedup",))], printed())
    assert made["published"].tolist() == [2.0]
    assert made["ratio"].isna().all()


@pytest.mark.parametrize(
    ("kind", "processors", "bed"),
    [
        ("cpu", "AMD EPYC", "CPU"),
        ("cuda", "NVIDIA H100", "GPU"),
        ("cpu", EMULATED, "emulated GPU"),
        ("cpu", "emulated compute: times of h100", "emulated GPU"),
        ("cpu", "emulated compute: times of one-core, 4 times slower", "emulated accelerator"),
    ],
)
def test_a_bed_is_what_computed(kind, processors, bed) -> None:
    assert bed_of(kind, processors) == bed


def test_no_printed_value_stands_twice_in_one_figure() -> None:
    keys = [name for name in PRINTED_COLUMNS if name not in ("published", "where", "how")]
    values = printed_values()
    assert not values.duplicated(keys).any()


@pytest.mark.slow
def test_the_kept_table_begins_with_the_columns_of_its_description() -> None:
    table = pd.read_csv(io.StringIO(comparison_csv()))
    assert ",".join(table.columns).startswith(
        "figure,dataset,network,strategy,devices,published,measured,ratio,bed,repeats"
    )
    paired = table[table["ratio"].notna()]
    assert (paired["ratio"] - paired["measured"] / paired["published"]).abs().max() < 0.01
    assert len(comparison_markdown().splitlines()) > len(paired["figure"].unique())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"deviation_horovod\.csv: no table"),
        (
            "source,dataset\nmeasured here,mnist\n",
            r"deviation_horovod\.csv has no column 'network'",
        ),
    ],
)
def test_a_damaged_table_is_one_sentence(tmp_path, text, sentence) -> None:
    (tmp_path / "deviation_horovod.csv").write_text(text)
    ours = results(tmp_path, base(), cell(), draws=("deviation_horovod",))
    with pytest.raises(ConfigError, match=sentence) as caught:
        compared(paper(("deviation_horovod",)), ours, printed())
    assert "\n" not in str(caught.value)


def test_a_cell_whose_base_was_cut_off_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no row of the base of mnist/vgg16/horovod"):
        compared(paper(), results(tmp_path, cell()), printed())
