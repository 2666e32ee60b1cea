import errno
import subprocess
import sys

import pandas as pd
import pytest
from report_factory import matrix, write, write_all

from ddlbench.commands.tables import fields_of
from ddlbench.experiment.result import Result
from ddlbench.report.measurements import collect_steps, make_tables
from ddlbench.report.tables import MEASUREMENTS, STEPS, SUMMARY, read_tables, write_table


@pytest.fixture
def rows(monkeypatch):
    return matrix(monkeypatch, repeats=2)


def test_tables_come_back_as_they_were_written(tmp_path, rows):
    write_all(tmp_path, rows)
    made = make_tables("demo", "local", rows, tmp_path, tmp_path / "tables")
    read = read_tables(tmp_path / "tables")
    for name in ("measurements", "summary", "steps"):
        pd.testing.assert_frame_equal(getattr(made, name), getattr(read, name), check_exact=True)


def test_tables_are_the_same_bytes_twice_and_leave_nothing_beside(tmp_path, rows):
    write_all(tmp_path, rows)
    for folder in ("one", "two"):
        make_tables("demo", "local", rows, tmp_path, tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["measurements.csv", "steps.csv", "summary.csv", "validation.csv"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_an_experiment_without_results_has_tables(tmp_path, rows):
    make_tables("demo", "local", rows, tmp_path, tmp_path / "tables")
    read = read_tables(tmp_path / "tables")
    assert len(read.measurements) == len(rows)
    assert set(read.summary["status"]) == {"not run"}
    assert list(read.steps.columns) == [column.name for column in STEPS]
    assert "nan" not in (tmp_path / "tables" / "summary.csv").read_text().lower()


def test_a_failed_write_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    write_table(path, pd.DataFrame({"a": [1]}))

    def broken(descriptor):
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_table(path, pd.DataFrame({"a": [2]}))
    assert path.read_text() == "a\n1\n"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_steps_are_put_below_each_other(tmp_path, rows):
    for row in rows[:2]:
        write(tmp_path, row.cell, steps=10)
    frame = collect_steps("local", rows, tmp_path)
    assert len(frame) == 2 * 12
    assert int(frame["warmup"].sum()) == 4
    assert set(frame["cell_id"]) == {row.cell.id for row in rows[:2]}


@pytest.mark.parametrize(
    "text", ["", "epoch,step\n0,0\n", "epoch,step,warmup,step_s,load_s,loss\n0,0,0,x,,\n"]
)
def test_unreadable_steps_are_left_out_with_a_warning(tmp_path, rows, caplog, text):
    path = write(tmp_path, rows[0].cell)
    (path.parent / "steps.csv").write_text(text)
    assert len(collect_steps("local", rows, tmp_path)) == 0
    assert "is left out" in caplog.text


def test_column_names_are_unique_and_explained():
    for columns in (MEASUREMENTS, SUMMARY, STEPS):
        names = [column.name for column in columns]
        assert len(names) == len(set(names))
        assert all(column.description for column in columns)
        for column in columns:
            assert (column.unit == "s") == (
                column.name.endswith("_s") and "per_s" not in column.name
            )
            assert (column.unit == "B") == column.name.endswith("_bytes")


def test_every_field_of_a_result_is_explained():
    missing = [name for name, _, meaning in fields_of(Result) if not meaning]
    assert not missing, f"describe it in experiment/result.py: {missing}"


def test_choosing_figures_needs_no_library_that_draws():
    code = (
        "import sys\n"
        "from ddlbench.report.registry import figures_for\n"
        "figures_for([])\n"
        "print([m for m in ('matplotlib', 'pandas', 'scipy') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
