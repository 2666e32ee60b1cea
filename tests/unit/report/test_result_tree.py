"""Trees of results as tables: `ddlbench.load`, without any experiment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import report_factory
from report_factory import matrix, write, write_all

import ddlbench
from ddlbench.experiment.links import read_links
from ddlbench.experiment.status import Failure, Reason
from ddlbench.report.measurements import make_tables
from ddlbench.report.result_tree import EXPORT_MARK, read_tree
from ddlbench.report.tables import CELLS, MEASUREMENTS, read_tables
from ddlbench.report.tree_tables import TreeTables, rank_columns, setting_columns


@pytest.fixture
def rows(monkeypatch):
    return matrix(
        monkeypatch,
        datasets=["mnist", "cifar10"],
        networks=["vgg11"],
        strategies=["sequential", "ddp", "gpipe"],
    )


@pytest.fixture
def results(tmp_path, rows) -> Path:
    """Results of which one timed out, and a cell that has failed."""
    root = tmp_path / "results"
    write_all(root, rows)
    failed = rows[-1].cell
    folder = root / "local" / "cells" / failed.id
    shutil.rmtree(folder)
    folder.mkdir(parents=True)
    reason = Reason("rank_killed", "rank 1 was killed by signal 9")
    Failure(failed.id, "program", reason, writer=None).write(folder)
    return root


def test_every_cell_is_a_row_with_the_values_of_the_experiments_table(tmp_path, rows, results):
    make_tables("demo", "local", rows, results, tmp_path / "tables")
    table = read_tables(tmp_path / "tables").measurements.set_index("cell_id").sort_index()
    loaded = ddlbench.load(results).set_index("cell_id").sort_index()
    shared = [c.name for c in MEASUREMENTS if c.name not in ("experiment", "stale", "cell_id")]
    assert set(shared) <= set(loaded.columns)
    pd.testing.assert_frame_equal(
        table[shared], loaded[shared], check_index_type=False, check_exact=True
    )


def test_cells_without_a_measurement_have_a_status_and_a_reason(results):
    frame = ddlbench.load(str(results)).set_index(["dataset", "strategy"])
    late, lost = frame.loc[("mnist", "ddp")], frame.loc[("cifar10", "gpipe")]
    assert (late["status"], late["reason_code"]) == ("timeout", "timeout")
    assert (lost["status"], lost["reason_code"]) == ("failed", "rank_killed")
    assert "signal 9" in lost["reason"]
    assert pd.isna(lost["epoch_s"])


def test_columns_are_those_declared_then_options_and_plans(tmp_path, monkeypatch, rows):
    row = next(row for row in rows if row.cell.strategy == "gpipe")
    cell = row.cell.with_(options=(("chunks", 4),))
    details = {"chunks": 4, "stages": [[0, 2, 1]], "built": {"mpi": False}, "period_s": 0.5}
    write(tmp_path, cell, report_factory.result(cell, plan_details=details))
    frame = ddlbench.load(tmp_path)
    declared = [column.name for column in (*CELLS, *setting_columns())]
    assert list(frame.columns[: len(declared)]) == declared
    only = frame.iloc[0]
    assert only["option_chunks"] == only["plan_chunks"] == 4
    assert json.loads(only["plan_stages"]) == [[0, 2, 1]]
    assert not only["plan_built_mpi"]
    assert only["plan_period_s"] == 0.5
    assert only["data_scale"] == 0.01


def test_a_site_one_cell_and_several_trees_are_read_alike(tmp_path, rows, results):
    whole = ddlbench.load(results)
    pd.testing.assert_frame_equal(
        ddlbench.load(results / "local").drop(columns="results"), whole.drop(columns="results")
    )
    folder = results / "local" / "cells" / rows[0].cell.id
    assert list(ddlbench.load(folder)["cell_id"]) == [rows[0].cell.id]
    assert list(ddlbench.load(folder / "result.json")["cell_id"]) == [rows[0].cell.id]
    other = tmp_path / "other"
    shutil.copytree(results, other)
    both = ddlbench.load([results, str(other)])
    assert len(both) == 2 * len(whole)
    assert both.groupby("results").size().to_dict() == {
        str(results): len(whole), str(other): len(whole)
    }  # fmt: skip
    assert len(ddlbench.load([results, results, results / "local"])) == len(whole)  # each once


def test_a_copied_folder_of_a_cell_says_itself_what_it_is(tmp_path, rows, results):
    copied = tmp_path / "a cell"
    shutil.copytree(results / "local" / "cells" / rows[0].cell.id, copied)
    only = ddlbench.load(copied).iloc[0]
    assert (only["site"], only["cell_id"], only["status"]) == ("local", rows[0].cell.id, "ok")
    failed = tmp_path / "a failure"
    shutil.copytree(results / "local" / "cells" / rows[-1].cell.id, failed)
    only = ddlbench.load(failed).iloc[0]
    assert (only["site"], only["cell_id"], only["status"]) == ("", rows[-1].cell.id, "failed")


def test_a_site_that_leads_out_of_a_folder_is_refused(tmp_path, rows, caplog):
    values = report_factory.result(rows[0].cell) | {"site": "../../out"}
    path = write(tmp_path / "a", rows[0].cell)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "result.json").write_text(json.dumps(values))
    assert set(ddlbench.load(tmp_path)["folder"]) == {str(path.parent)}
    assert "no name of a site" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"a": NaN}', "\0"])
def test_a_damaged_result_is_one_warning_and_a_row(rows, results, caplog, text):
    path = results / "local" / "cells" / rows[0].cell.id / "result.json"
    path.write_text(text)
    frame = ddlbench.load(results)
    assert len(caplog.messages) == 1
    assert str(path) in caplog.messages[0]
    assert "\n" not in caplog.messages[0]
    row = frame.set_index("cell_id").loc[rows[0].cell.id]
    assert row["status"] == "invalid"
    assert len(frame) == len(rows)


def test_many_damaged_results_are_a_few_warnings(monkeypatch, tmp_path, caplog):
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], repeats=4)
    for row in rows:
        write(tmp_path, row.cell).write_text("{")
    assert set(ddlbench.load(tmp_path)["status"]) == {"invalid"}
    assert len(caplog.messages) < 8 < len(rows)


@pytest.mark.parametrize("wrong", ["missing", "a file", None, 3, [], [None], "empty"])
def test_a_wrong_place_is_one_sentence(tmp_path, wrong):
    (tmp_path / "a file").write_text("")
    (tmp_path / "empty").mkdir()
    place = tmp_path / wrong if isinstance(wrong, str) else wrong
    with pytest.raises(ValueError) as error:
        ddlbench.load(place)
    assert len(str(error.value).splitlines()) == 1


def test_links_that_lead_in_a_circle_or_nowhere_end(results):
    (results / "again").symlink_to(results)
    (results / "nowhere").symlink_to("missing")
    assert ddlbench.load(results)["folder"].is_unique


def test_copies_in_an_export_are_no_further_cells(results):
    shutil.copytree(results / "local", results / "exported" / "local")
    before = len(ddlbench.load(results))
    (results / "exported" / EXPORT_MARK).write_text("")
    assert len(ddlbench.load(results)) == before / 2
    assert len(ddlbench.load(results / "exported")) == before / 2


def test_tables_of_experiments_name_the_base_of_another_batch(tmp_path, monkeypatch):
    rows = matrix(
        monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=["sequential", "ddp"],
        settings={"batch_per_device": 8, "data_scale": 0.01},
    )  # fmt: skip
    assert len({row.cell.batch_size for row in rows}) == 2
    write_all(tmp_path, rows, troubled=False)
    assert ddlbench.load(tmp_path)["speedup"].notna().sum() == 1  # of the base itself
    make_tables("demo", "local", rows, tmp_path, tmp_path / "local" / "demo" / "tables")
    frame = ddlbench.load(tmp_path)
    assert frame["speedup"].notna().all()
    assert set(frame["experiment"]) == {"demo"}


def test_a_base_that_was_measured_for_longer_is_still_the_base(tmp_path, rows):
    base, other = rows[0].cell, rows[1].cell
    write(tmp_path, base.with_(max_steps=7))
    write(tmp_path, other)
    frame = ddlbench.load(tmp_path).set_index("strategy")
    assert frame.loc[other.strategy, "base_cell_id"] == base.with_(max_steps=7).id
    write(tmp_path, base.with_(max_steps=9))  # now it cannot be told which
    assert set(ddlbench.load(tmp_path).set_index("strategy").loc[other.strategy, ["base_cell_id"]]
               ) == {""}  # fmt: skip


def test_cells_of_parts_that_are_not_installed_are_read(tmp_path, rows):
    cell = rows[0].cell.with_(dataset="photos", network="mynets:cnn", strategy="mine")
    values = report_factory.result(rows[0].cell)
    values |= {"cell_id": cell.id, "cell": cell.to_dict()}
    write(tmp_path, cell, values)
    only = ddlbench.load(tmp_path).iloc[0]
    assert (only["dataset"], only["network"], only["strategy"]) == ("photos", "mynets:cnn", "mine")
    assert only["status"] == "ok"


def test_steps_ranks_and_links_are_tables(tmp_path, rows, results):
    links = results / "local" / "links" / "default" / "links.json"
    links.parent.mkdir(parents=True)
    links.write_text(json.dumps(LINKS))
    read_links(links)  # it is valid
    tables = TreeTables(read_tree(results))
    ok = [cell for cell in tables.tree.cells if cell.result and cell.result.timing]
    assert len(tables.steps.frame) == 26 * len(ok)
    assert set(tables.steps.frame["cell_id"]) == {cell.cell.id for cell in ok}
    ranks = tables.ranks.frame
    assert len(ranks) == sum(len(cell.result.ranks) for cell in ok)
    assert {column.name for column in rank_columns()} <= set(ranks.columns)
    two = ranks[ranks["cell_id"] == next(o.cell.id for o in ok if o.cell.devices == 2)]
    assert list(two["rank"]) == [0, 1]
    first = next(cell for cell in ok if cell.cell.devices == 2).result
    assert list(two["memory_peak_bytes"]) == [r.memory[0].peak_bytes for r in first.ranks]
    assert list(tables.links.frame["latency_s"]) == [1e-5, 2e-5]
    assert list(tables.links.frame["bandwidth_bytes_per_s"]) == [1e9, 2e9]


LINKS = {
    "schema_version": 1,
    "site": "local",
    "fabric": "default",
    "device_kind": "cpu",
    "pairs": [
        {
            "scope": "world",
            "method": "gloo",
            "endpoints": ["a", "b"],
            "nodes": [0, 1],
            "bandwidth_bytes_per_s": [[None, 1e9], [2e9, None]],
            "latency_s": [[None, 1e-5], [2e-5, None]],
        }
    ],
    "sweeps": [],
    "notes": [],
    "provenance": {},
}


def test_importing_the_package_imports_no_library():
    code = (
        "import sys; before = {*sys.modules}; import ddlbench\n"
        "added = {m.partition('.')[0] for m in {*sys.modules} - before}\n"
        "print(sorted(added - sys.stdlib_module_names - {'ddlbench'}))"
    )
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(ddlbench.__file__).parents[1])},
    )  # fmt: skip
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("text", ["", "site,cell_id\na\n", "\0", "a" * 200_000, '"', "\xff"])
def test_a_damaged_table_of_an_experiment_is_one_warning(results, caplog, text):
    path = results / "local" / "demo" / "tables" / "measurements.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    assert ddlbench.load(results)["speedup"].notna().any()
    assert [str(path) in message for message in caplog.messages] == [True]
