"""Compiled networks train as others do."""

from __future__ import annotations

import pytest
import torch
from cases.small_cells import RUNS, STEPS, cell_of, needs_horovod
from local_cells import local_site, odd_cell, run_one

from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import strategy_of, why_not_compiled
from ddlbench.testing.training import assert_same_weights, reference, train

PIPELINES = [
    cell_of("pipe-gpipe", 2, balance="3+3"),
    cell_of("pipe-1f1b", 2, balance="3+3"),
    cell_of("pipe-interleaved", 2, balance="2+1+1+2"),
]


def _assert_equal(cells: list[Cell], parts: int, monkeypatch, folder) -> None:
    """Cells of equal worlds, one after the other, against training that is not compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None
        assert why_not_compiled(cell.with_(compile=True), strategy_of(cell.strategy)) is None
    expected, losses = reference(cells[0], parts, STEPS)
    compiled = [cell.with_(compile=True) for cell in cells]
    for ranks in train(compiled, RUNS, limit_s=600):  # a busy machine compiles for minutes
        states = [rank["state"] for rank in ranks]
        for state in states:
            expected_state = {name: value for name, value in expected.items() if name in state}
            assert expected_state
            assert_same_weights(state, expected_state, rtol=1e-4, atol=1e-5)
        own_losses = [rank["loss"] for rank in ranks if rank["loss"]]
        mean_losses = torch.tensor(own_losses).mean(dim=0)
        torch.testing.assert_close(mean_losses, torch.tensor(losses), rtol=1e-3, atol=1e-4)


def test_data_parallel_replicas_equal_plain_training(monkeypatch, tmp_path):
    _assert_equal([cell_of("ddp", 2)], 2, monkeypatch, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cells", "parts"),
    [
        ([cell_of("sequential", 1)], 1),
        (
            [
                cell_of("local-sgd", 2, average_every_steps=1),
                cell_of("fsdp", 2),
                cell_of("ddp", 2, shard="optimizer", bucket_view=True),
            ],
            2,
        ),
        pytest.param([cell_of("horovod", 2)], 2, marks=needs_horovod),
        (PIPELINES, 4),
    ],
    ids=["sequential", "data parallel", "horovod", "pipelines"],
)
def test_compiled_strategies_equal_plain_training(monkeypatch, tmp_path, cells, parts):
    _assert_equal(cells, parts, monkeypatch, tmp_path)


def test_a_compiled_cell_has_the_losses_of_another_and_its_seconds_apart(tmp_path):
    """Warm-up is one step here, so that a compilation would show in the loss or the steps."""
    plain = odd_cell("plain", "sequential", devices=1).with_(network="mlp")
    site = local_site(tmp_path, 1)
    expected, _ = run_one(plain, site, tmp_path)
    result, folder = run_one(plain.with_(compile=True), site, tmp_path)
    assert expected["compilation"] is None
    assert result["compilation"]["graphs"] > 0
    assert result["compilation"]["graphs_later"] == 0
    assert result["compilation"]["compile_s"] > 0
    for name, loss in expected["loss"].items():
        assert result["loss"][name] == pytest.approx(loss, rel=1e-4)
    assert result["ranks"][0]["memory"][0]["peak_bytes"] is None
    assert any("no peak" in note for note in result["notes"])
    assert not list(folder.glob(".run-*"))


def test_without_a_compiler_a_cell_is_unsupported(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    cell = odd_cell("plain", "sequential", devices=1, compile=True)
    result, _ = run_one(cell, local_site(tmp_path, 1), tmp_path)
    assert (result["status"], result["reason_code"]) == ("unsupported", "cannot_compile")
    assert "C++ compiler" in result["reason"]
