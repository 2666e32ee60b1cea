"""Every table that is made from the code is what the code says today."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddlbench.commands.tables import TABLES, GeneratedTable, write_tables

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def _must_be_up_to_date(table: GeneratedTable, root: Path) -> None:
    present = (root / table.path).read_text("utf-8")
    if table.text(present) != present:
        pytest.fail(f"{table.path} is out of date; run `make tables`", pytrace=False)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: f"{t.path}{t.section and '#'}{t.section}")
def test_tables_are_up_to_date(table: GeneratedTable) -> None:
    _must_be_up_to_date(table, ROOT)


def test_an_outdated_table_names_the_command_that_mends_it(tmp_path: Path) -> None:
    (table,) = (t for t in TABLES if t.section == "datasets")
    page = tmp_path / table.path
    page.parent.mkdir(parents=True)
    page.write_text((ROOT / table.path).read_text("utf-8").replace("| 10 |", "| 11 |"), "utf-8")
    with pytest.raises(pytest.fail.Exception, match=r"docs/networks\.md .* run `make tables`"):
        _must_be_up_to_date(table, tmp_path)


def test_all_tables_are_made_where_they_are_wrong(tmp_path: Path, monkeypatch) -> None:
    pages = ("config/README.md", "docs/measurement.md", "docs/networks.md")
    few = [t for t in TABLES if t.path in pages]
    monkeypatch.setattr("ddlbench.commands.tables.TABLES", few)
    for table in few:
        path = tmp_path / table.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / table.path).read_text("utf-8").replace("`mnist`", "`mnist0`"))
    changed = {str(path.relative_to(tmp_path)) for path in write_tables(tmp_path)}
    assert changed == {"config/README.md", "docs/networks.md"}
    for table in few:
        _must_be_up_to_date(table, tmp_path)


def test_a_page_without_the_marks_is_named() -> None:
    table = next(t for t in TABLES if t.section == "datasets")
    with pytest.raises(ValueError, match=r"docs/networks\.md lacks '<!-- table: datasets -->'"):
        table.text("# Networks\n")


def test_make_runs_it() -> None:
    dry_run = subprocess.run(
        ["make", "-n", "tables"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "python -m ddlbench.commands.tables" in dry_run.stdout
