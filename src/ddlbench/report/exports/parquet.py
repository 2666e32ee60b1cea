"""Parquet: a file for the cells and one for their steps; columns carry units and meanings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlbench import __version__
from ddlbench.common.document import whole_file
from ddlbench.common.errors import ConfigError
from ddlbench.report.exports.registry import Study, check_file
from ddlbench.report.tables import Kind
from ddlbench.report.tree_tables import TreeTable, TreeTables

_TYPES: dict[Kind, str] = {
    "text": "string", "integer": "int64", "number": "float64", "flag": "bool",
    "flag or unknown": "bool",
}  # fmt: skip


def write(tables: TreeTables, out: Path, study: Study) -> str:
    """Write ``cells.parquet`` and ``steps.parquet`` into the folder ``out``."""
    import pyarrow.parquet  # noqa: PLC0415 - an optional package

    files = {out / f"{table.name}.parquet": table for table in (tables.cells, tables.steps)}
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    for path in files:  # all of them before the first is replaced
        check_file(path, _is_export)
    for path, table in files.items():
        with whole_file(path) as beside:
            pyarrow.parquet.write_table(arrow_table(table, study), beside)
    return f'pandas.read_parquet("{out}/cells.parquet")'


def _is_export(path: Path) -> bool:
    """Whether the metadata of the file says that ddlbench made it."""
    import pyarrow as pa  # noqa: PLC0415 - an optional package
    import pyarrow.parquet  # noqa: PLC0415

    try:
        about = pyarrow.parquet.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:  # no Parquet, or a damaged one
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return False
    return bool(about.get(b"creator", b"").startswith(b"ddlbench "))


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
