"""Cells of other data or other code of the user's are never compared, and say so."""

from __future__ import annotations

import pytest
from report_factory import SITE_NAME, collect, experiment, result, site, write

from ddlbench.experiment.cell import Cell
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.report.measurements import make_tables

DIGEST, OTHER_DIGEST = 64 * "a", 64 * "b"


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    chosen = experiment(
        datasets=["mnist"],
        networks=["vgg11"],
        strategies=["sequential", "ddp"],
        repeats=2,
        settings={"batch_size": 16, "data_source": "real"},
    )
    return expand(chosen, site(real_data={"mnist": "/data"}))


def measured(tmp_path, rows, digest_of, **changes):
    for row in rows:
        values = result(row.cell, epoch_s=18.0 if row.cell.strategy == "sequential" else 12.0)
        values["inputs"]["dataset_digest"] = digest_of(row.cell)
        values.update(changes)
        write(tmp_path, row.cell, values)
    return collect("demo", SITE_NAME, rows, tmp_path)


def test_cells_of_the_same_data_have_a_speedup(tmp_path, rows):
    frame = measured(tmp_path, rows, lambda _: DIGEST)
    assert frame["speedup"].notna().all()


def test_a_base_of_other_data_gives_no_speedup(tmp_path, rows):
    frame = measured(
        tmp_path, rows, lambda c: DIGEST if c.strategy == "sequential" else OTHER_DIGEST
    )
    cells = frame[frame["strategy"] == "ddp"]
    assert cells["speedup"].isna().all()
    for row in cells.to_dict("records"):
        assert row["comparability"] == "unlike_base own_data: aaaaaaa (base), bbbbbbb (cell)"
        assert row["no_speedup"] == "other_data"


def test_repeats_of_other_data_give_no_speedup(tmp_path, rows):
    def digest(cell: Cell) -> str:
        return DIGEST if cell.repeat == 0 else OTHER_DIGEST

    frame = measured(tmp_path, rows, digest)
    assert frame["speedup"].notna().all()  # each repeat has a base of its data
    summary = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables").summary
    row = summary[summary["strategy"] == "ddp"].iloc[0]
    assert row["speedup_n"] == 0
    assert row["comparability"] == "unlike_repeats own_data: aaaaaaa, bbbbbbb"
    assert row["no_speedup"] == "other_data"


def test_a_base_of_other_code_gives_no_speedup(tmp_path, rows):
    for row in rows:
        values = result(row.cell, epoch_s=1.0)
        values["inputs"]["network_digest"] = (
            DIGEST if row.cell.strategy == "sequential" else OTHER_DIGEST
        )
        write(tmp_path, row.cell, values)
    frame = collect("demo", SITE_NAME, rows, tmp_path)
    cells = frame[frame["strategy"] == "ddp"]
    assert set(cells["no_speedup"]) == {"other_code"}
    assert cells["speedup"].isna().all()


def test_generated_data_is_not_compared(tmp_path, rows):
    made = [row.cell.with_(data_source="synthetic") for row in rows]
    base = {cell.repeat: cell.id for cell in made if cell.strategy == "sequential"}
    frame = measured(
        tmp_path,
        [MatrixRow(cell, base[cell.repeat], None) for cell in made],
        lambda cell: DIGEST if cell.strategy == "sequential" else OTHER_DIGEST,
    )
    assert frame["speedup"].notna().all()
    assert not frame["comparability"].str.contains("own_data").any()
