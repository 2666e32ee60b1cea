"""DuckDB: one database of the tables; comments of its columns are their units and meanings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlbench import __version__
from ddlbench.common.document import whole_file
from ddlbench.report.exports.registry import Study, check_file
from ddlbench.report.tables import Kind
from ddlbench.report.tree_tables import TreeTable, TreeTables

_TYPES: dict[Kind, str] = {
    "text": "VARCHAR", "integer": "BIGINT", "number": "DOUBLE", "flag": "BOOLEAN",
    "flag or unknown": "BOOLEAN",
}  # fmt: skip

_MADE_BY = "made by ddlbench "


def write(tables: TreeTables, out: Path, study: Study) -> str:
    """Write a table for the cells, their steps and ranks, and the links, if there are any."""
    import duckdb  # noqa: PLC0415 - an optional package

    check_file(out, _is_export)
    with whole_file(out) as beside:
        beside.unlink(missing_ok=True)  # of an export that was killed
        with duckdb.connect(beside) as database:
            for table in tables.all:
                _write_table(database, table)
    return f'duckdb {out} "FROM cells"'


def _is_export(path: Path) -> bool:
    """Whether all tables of the database say that ddlbench made them."""
    import duckdb  # noqa: PLC0415 - an optional package

    try:
        with duckdb.connect(path, read_only=True) as database:
            comments = database.execute("SELECT comment FROM duckdb_tables()").fetchall()
    except duckdb.Error:  # no database
        return False
    return bool(comments) and all(str(comment).startswith(_MADE_BY) for (comment,) in comments)


def _write_table(database: Any, table: TreeTable) -> None:
    columns = [f"{_name(column.name)} {_TYPES[column.kind]}" for column in table.columns]
    database.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")
    database.execute(f"COMMENT ON TABLE {table.name} IS '{_MADE_BY}{__version__}'")
    database.register("rows_of_frame", table.frame)
    # pandas has one value for a number that is unknown and one that is none.
    fields = [
        f"nullif({_name(column.name)}, 'nan'::DOUBLE)"
        if column.kind == "number"
        else _name(column.name)
        for column in table.columns
    ]
    database.execute(f"INSERT INTO {table.name} SELECT {', '.join(fields)} FROM rows_of_frame")
    database.unregister("rows_of_frame")
    for column in table.columns:
        text = f"{column.description} [{column.unit}]" if column.unit else column.description
        quoted = text.replace("'", "''")
        database.execute(f"COMMENT ON COLUMN {table.name}.{_name(column.name)} IS '{quoted}'")


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
