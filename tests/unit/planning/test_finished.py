"""Which cells are done: one rule for status, plan and Snakemake."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import project_root, result_file
from ddlbench.planning.expected_time import Finished, finished_of, put_aside_invalid

RESULT = json.loads((project_root() / "benchmarks" / "scale" / "result.json").read_text("utf-8"))
CELLS = [
    Cell("mnist", "vgg11", "ddp", batch_size=16, devices_per_node=2, repeat=n).id for n in range(3)
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(cell: str, **changes: Any) -> Path:
    path = result_file("local", cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**RESULT, "site": "local", "cell_id": cell, **changes}))
    return path


def finished() -> Finished:
    return finished_of(CELLS, "local")


def test_a_valid_result_is_done_and_one_that_is_missing_waits() -> None:
    write(CELLS[0])
    assert finished().waiting(CELLS) == set(CELLS[1:])
    assert list(finished().remarks()) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"site": "other"}, "is the result of site 'other', not of local"),
        ({"cell_id": CELLS[1]}, f"is the result of '{CELLS[1][:20]}"),
        ({"timing": None}, "there is no epoch_s"),
        ({"elapsed_s": "long"}, "elapsed_s"),
        ({"devices": 2.0}, "devices"),
        ({"status": "failed", "timing": None}, "an attempt that failed"),
    ],
)
def test_an_invalid_result_is_put_aside_and_measured_again(changes, why: str) -> None:
    path = write(CELLS[0], **changes)
    before = path.read_text()
    (sentence,) = put_aside_invalid(finished(), "local")
    assert why in sentence
    assert not path.exists()
    assert path.with_name("result.json.broken").read_text() == before
    assert finished() == Finished({}, {}, {})


def test_a_folder_in_place_of_a_result_is_put_aside() -> None:
    result_file("local", CELLS[0]).mkdir(parents=True)
    (sentence,) = put_aside_invalid(finished(), "local")
    assert "result.json.broken" in sentence


def test_a_result_of_a_newer_version_is_neither_done_nor_measured_again() -> None:
    path = write(CELLS[0], schema_version=2)
    assert finished().waiting(CELLS) == set(CELLS[1:])
    assert list(put_aside_invalid(finished(), "local")) == []
    assert path.is_file()
    (sentence,) = finished().left_remarks()
    assert sentence.startswith("result.json of 1 cell: written by a newer ddlbench (schema 2; ")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_result_that_cannot_be_read_today_is_left(number: int, monkeypatch) -> None:
    write(CELLS[0])

    def unreadable(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    assert CELLS[0] not in finished().waiting(CELLS)
    assert list(put_aside_invalid(finished(), "local")) == []


def test_cells_with_one_fault_share_a_sentence() -> None:
    for cell_id in CELLS:
        write(cell_id, schema_version=2)
    (sentence,) = finished().remarks()
    assert sentence.startswith("result.json of 3 cells: ")
    assert sentence.endswith(f"(first: {CELLS[0]})")
