"""Parquet: a file for the cells and one for their steps; columns carry units and meanings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlbench import __version__
from ddlbench.common.document import whole_file
from ddlbench.report.exports.registry import Study
from ddlbench.report.tables import Kind
from ddlbench.report.tree_tables import TreeTable, TreeTables

_TYPES: dict[Kind, str] = {
    "text": "string", "integer": "int64", "number": "float64", "flag": "bool",
    "flag or unknown": "bool",
}  # fmt: skip


def write(tables: TreeTables, out: Path, study: Study) -> str:
    """Write ``cells.parquet`` and ``steps.parquet`` into the folder ``out``."""
    import pyarrow.parquet  # noqa: PLC0415 - an optional package

    for table in (tables.cells, tables.steps):
        with whole_file(out / f"{table.name}.parquet") as beside:
            pyarrow.parquet.write_table(arrow_table(table, study), beside)
    return f'pandas.read_parquet("{out}/cells.parquet")'


def arrow_table(table: TreeTable, study: Study) -> Any:
    """The table as Arrow has it; an unknown number is null."""
    import pyarrow as pa  # noqa: PLC0415 - an optional package

    fields, arrays = [], []
    for column in table.columns:
        kind = pa.type_for_alias(_TYPES[column.kind])
        about_column = {"unit": column.unit, "description": column.description}
        fields.append(pa.field(column.name, kind, metadata=about_column))
        arrays.append(pa.array(table.frame[column.name], kind, from_pandas=True))
    about = {"creator": f"ddlbench {__version__}", "author": study.author, "license": study.licence}
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=about))
