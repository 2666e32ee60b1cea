"""Results in the formats of other tools, as far as it needs none of them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import report_factory
from click.testing import CliRunner
from report_factory import matrix, write, write_all

import ddlbench
from ddlbench import cli
from ddlbench.common.errors import ConfigError
from ddlbench.report.exports.openmetrics import exposition
from ddlbench.report.exports.registry import EXPORTS, whole_folder
from ddlbench.report.measurements import make_tables
from ddlbench.report.result_tree import EXPORT_MARK, read_tree
from ddlbench.report.tables import CELLS
from ddlbench.report.tree_tables import TreeTables

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    rows = matrix(
        monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=["sequential", "ddp"]
    )
    write_all(tmp_path / "results", rows)  # the second times out
    tables = tmp_path / "results" / "local" / "demo" / "tables"
    make_tables("demo", "local", rows, tmp_path / "results", tables)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


def run(*arguments: object) -> str:
    ended = CliRunner().invoke(cli.commands, ["report", "export", *map(str, arguments)])
    if ended.exception and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_parquet_carries_values_units_and_meanings(results, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert "2 cells, 1 without a measurement" in run("--to", "parquet", results)
    table = parquet.read_table(tmp_path / "exports" / "parquet" / "cells.parquet")
    frame = ddlbench.load(results)
    for column in CELLS:
        field = table.schema.field(column.name)
        assert field.metadata[b"unit"].decode() == column.unit
        assert field.metadata[b"description"].decode() == column.description
    read = table.to_pandas()
    assert list(read["epoch_s"].dropna()) == list(frame["epoch_s"].dropna())
    assert table["epoch_s"].null_count == 1
    steps = parquet.read_table(tmp_path / "exports" / "parquet" / "steps.parquet")
    assert steps.num_rows == 26


_LINE = re.compile(r'(\w+)\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\} (\S+)')


def test_openmetrics_has_a_typed_family_for_each_number(results):
    lines = exposition(TreeTables(read_tree(results))).splitlines()
    assert lines[-1] == "# EOF"
    typed: set[str] = set()
    for line in lines[:-1]:
        if line.startswith("# "):
            word, name = line.split()[1:3]
            if word == "UNIT":
                assert name.endswith(f"_{line.split()[3]}")
            elif word == "TYPE":
                assert name not in typed
                typed.add(name)
            continue
        match = _LINE.fullmatch(line)
        assert match and match[1] in typed, line
        assert float(match[2]) == float(match[2])  # no NaN
    values = {line.split("{")[0]: line.split("} ")[1] for line in lines if 'strategy="seq' in line}
    first = ddlbench.load(results).set_index("strategy").loc["sequential"]
    assert float(values["ddlbench_step_median_seconds"]) == first["step_median_s"]
    assert any('status="timeout"' in line for line in lines)


def test_labels_are_escaped_and_series_of_several_trees_differ(results, tmp_path):
    odd = tmp_path / 'a "quoted"\\\nname'
    odd.symlink_to(results)
    assert len(read_tree([results, odd]).cells) == 2  # the same folder, so the same cells
    odd.unlink()
    write(odd, read_tree(results).cells[0].cell)
    text = exposition(TreeTables(read_tree([results, odd])))
    assert r"a \"quoted\"\\\nname/" in text
    series = [line.split("} ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_a_crate_describes_files_that_are_there(results, tmp_path, monkeypatch):
    config = tmp_path / "study.yaml"
    config.write_text("experiment: demo\n")
    monkeypatch.chdir(ROOT)
    out = tmp_path / "crate"
    arguments = ("--to", "ro-crate", results, "--out", out, "--configfile", config)
    run(*arguments, "--author", "Ada <https://orcid.org/0000-0002-1825-0097>")
    graph = json.loads((out / "ro-crate-metadata.json").read_text("utf-8"))["@graph"]
    known = {entity["@id"]: entity for entity in graph}
    assert len(known) == len(graph)
    kinds = {entity["@id"]: str(entity["@type"]) for entity in graph}
    for name, kind in kinds.items():
        if "File" in kind or ("Dataset" in kind and name != "./"):
            assert (out / unquote(name)).exists()
    for reference in re.findall(r"\{'@id': '([^']+)'\}", str(graph)):
        assert reference in known or reference.startswith("https://")
    run_ = known["#run"]
    assert run_["instrument"] == {"@id": "Snakefile"}
    assert run_["startTime"] < run_["endTime"]
    assert run_["object"][0] == {"@id": "config/study.yaml"}
    assert known["./"]["license"] == {"@id": "https://spdx.org/licenses/Apache-2.0"}
    again = ddlbench.load(out / "results")
    assert list(again["cell_id"]) == list(ddlbench.load(results)["cell_id"])


def test_a_crate_holds_each_cell_once_and_no_links(results, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "private").write_text("key")
    steps = read_tree(results).cells[-1].folder / "steps.csv"
    steps.unlink(missing_ok=True)
    steps.symlink_to(tmp_path / "private")
    run("--to", "ro-crate", results, "--out", tmp_path / "crate")
    files = [path for path in (tmp_path / "crate").rglob("*") if path.is_file()]
    assert all(path.read_bytes() != b"key" for path in files)
    shutil.copytree(results, tmp_path / "again")
    with pytest.raises(ConfigError, match="same cell"):
        run("--to", "ro-crate", results, tmp_path / "again", "--out", tmp_path / "other")


def test_a_second_export_replaces_the_first_and_nothing_else(results, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    out = tmp_path / "crate"
    for _ in range(2):
        run("--to", "ro-crate", results, "--out", out)
    assert [path.name for path in tmp_path.glob("*crate*")] == ["crate"]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="thesis|no export"):
        run("--to", "ro-crate", results, "--out", theirs)
    assert [path.name for path in theirs.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("name", "out", "file"),
    [
        ("openmetrics", "theirs/README.prom", "README.prom"),
        ("parquet", "theirs", "cells.parquet"),
        ("parquet", "theirs", "steps.parquet"),
        ("duckdb", "theirs/results.duckdb", "results.duckdb"),
    ],
)
def test_no_format_replaces_a_file_that_no_export_wrote(results, tmp_path, name, out, file):
    if EXPORTS[name].imports:
        pytest.importorskip(EXPORTS[name].imports)
    theirs = tmp_path / "theirs" / file
    theirs.parent.mkdir()
    theirs.write_text("my thesis")
    with pytest.raises(ConfigError, match=f"{file} is a file that no export"):
        run("--to", name, results, "--out", tmp_path / out)
    assert theirs.read_text() == "my thesis"
    assert list(theirs.parent.iterdir()) == [theirs]


def test_parquet_and_duckdb_files_of_others_stay(results, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    duckdb = pytest.importorskip("duckdb")
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"mine": [1]}), tmp_path / "cells.parquet")
    with duckdb.connect(tmp_path / "mine.duckdb") as database:
        database.execute("CREATE TABLE cells (mine INTEGER)")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*") if path.is_file()}
    for name, out in (("parquet", tmp_path), ("duckdb", tmp_path / "mine.duckdb")):
        with pytest.raises(ConfigError, match="no export"):
            run("--to", name, results, "--out", out)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["openmetrics", "parquet", "duckdb"])
def test_an_export_replaces_an_earlier_one_of_its_format(results, name):
    if EXPORTS[name].imports:
        pytest.importorskip(EXPORTS[name].imports)
    for _ in range(2):
        assert "2 cells" in run("--to", name, results)


def test_openmetrics_asks_for_a_name_that_node_exporter_reads(results, tmp_path):
    with pytest.raises(ConfigError, match=r"write --out .*metrics\.prom, or"):
        run("--to", "openmetrics", results, "--out", tmp_path / "metrics")
    assert not (tmp_path / "metrics").exists()
    for out in (tmp_path / "metrics.prom", tmp_path / "metrics" / "ddlbench.prom"):
        printed = run("--to", "openmetrics", results, "--out", out)
        assert f"directory={out.parent}\n" in printed
        assert out.is_file()


def test_a_folder_that_is_not_finished_leaves_the_old_one(tmp_path):
    out = tmp_path / "out"
    with whole_folder(out) as folder:
        (folder / "a").write_text("1")
    with pytest.raises(KeyboardInterrupt), whole_folder(out) as folder:
        (folder / "a").write_text("2")
        raise KeyboardInterrupt
    assert (out / "a").read_text() == "1"
    assert {path.name for path in out.iterdir()} == {"a", EXPORT_MARK}
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", [n for n, f in EXPORTS.built_in.items() if f.imports])
def test_a_missing_package_is_one_sentence_with_the_command(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, EXPORTS[name].imports, None)
    with pytest.raises(ConfigError, match="python -m pip install"):
        run("--to", name, tmp_path)


def test_an_unknown_format_and_no_results_are_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="parquet"):
        run("--to", "parquett", tmp_path)
    with pytest.raises(ConfigError, match="no cell was measured"):
        run("--to", "openmetrics", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_a_file_gets_the_file(results, tmp_path):
    (tmp_path / "collector").mkdir()
    run("--to", "openmetrics", results, "--out", tmp_path / "collector")
    assert [path.name for path in (tmp_path / "collector").iterdir()] == ["ddlbench.prom"]


def test_another_package_adds_a_format(results, tmp_path, third_party):
    source = """
from ddlbench.common.document import write_text
from ddlbench.report.exports.registry import ExportFormat

def write(tables, out, study):
    write_text(out, f"{len(tables.cells.frame)} {study.licence}")
    return f"cat {out}"

FORMAT = ExportFormat(write, "a count", "count.txt")
"""
    third_party("counting", source, {"ddlbench.exports": {"count": "FORMAT"}})
    assert "cat exports/count.txt" in run("--to", "count", results, "--licence", "CC0-1.0")
    assert (tmp_path / "exports" / "count.txt").read_text() == "2 CC0-1.0"


def test_status_as_json_has_every_cell(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = matrix(
        monkeypatch, datasets=["mnist"], networks=["vgg11"],
        strategies=["sequential", "ddp", "gpipe"],
    )  # fmt: skip
    monkeypatch.setattr(
        "ddlbench.commands.options.matrix_at",
        lambda *_: (report_factory.experiment(), report_factory.site(), rows),
    )
    for row in rows[:2]:
        values = report_factory.failed(row.cell, "timeout", "longer than 600 s")
        write(Path("results"), row.cell, None if row is rows[0] else values)
    ended = CliRunner().invoke(cli.commands, ["status", "--json"], catch_exceptions=False)
    actual = json.loads(ended.output)
    assert actual["counts"] == {"ok": 1, "timeout": 1, "not run": 1}
    assert (actual["experiment"], actual["site"], actual["done"]) == ("demo", "local", False)
    first, second, third = actual["cells"]
    assert (first["state"], first["reason"]) == ("ok", None)
    assert first["step_median_s"] > 0
    assert Path(first["result"]).is_file()
    assert (second["state"], second["reason_code"]) == ("timeout", "timeout")
    assert (third["state"], third["finished"]) == ("not run", None)
    ended = CliRunner().invoke(cli.commands, ["status", "--json", "--state", "timeout"])
    assert [cell["state"] for cell in json.loads(ended.output)["cells"]] == ["timeout"]
