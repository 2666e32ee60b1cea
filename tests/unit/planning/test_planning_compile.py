"""The cell setting ``compile``: cells that were there stay, and who cannot says why."""

from __future__ import annotations

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.experiment.site import Accelerator, load_site
from ddlbench.planning import matrix
from ddlbench.planning.matrix import expand
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import Strategy, strategy_of, why_not_compiled
from ddlbench.predict.inputs import Inputs

CELL = Cell("mnist", "resnet18", "ddp", 16, devices_per_node=2)
COMPILING = {
    "sequential", "ddp", "horovod", "fsdp", "local-sgd", "pipe-gpipe", "pipe-1f1b",
    "pipe-interleaved",
}  # fmt: skip


def test_cells_without_it_keep_their_paths_and_plans():
    assert CELL.id == "mnist/resnet18/ddp/1x2/batch_size=16/rep0"
    compiled = CELL.with_(compile=True)
    assert compiled.id == "mnist/resnet18/ddp/1x2/batch_size=16+compile=true/rep0"
    assert Cell.from_id(compiled.id) == Cell.from_dict(compiled.to_dict()) == compiled
    assert compiled.to_dict() == {**CELL.to_dict(), "compile": True}
    assert make_plan(CELL).digest != make_plan(compiled).digest


@pytest.mark.parametrize("name", SHIPPED_STRATEGIES)
def test_every_strategy_compiles_or_says_why_not(name):
    cell = CELL.with_(strategy=name)
    assert why_not_compiled(cell, strategy_of(name)) is None
    reason = why_not_compiled(cell.with_(compile=True), strategy_of(name))
    assert (reason is None) == (name in COMPILING)
    if reason is not None:
        assert reason.code == "cannot_compile"
        assert reason.endswith("; write compile: false")


def test_a_strategy_of_others_compiles_only_if_it_says_so():
    assert why_not_compiled(CELL.with_(compile=True), Strategy()) is not None


def _experiment(**further):
    return parse_experiment(
        {
            "experiment": "demo",
            "matrix": {
                "dataset": ["mnist"],
                "network": ["resnet18"],
                "strategy": ["sequential", "ddp", "gpipe"],
                "geometry": ["1x2"],
                "compile": [False, True],
            },
            "settings": {"batch_size": 16},
            **further,
        }
    )


def test_in_a_matrix_it_is_an_axis_and_the_base_is_compiled_alike(monkeypatch):
    monkeypatch.setattr(matrix, "_missing_package", lambda names, install: None)
    rows = {(r.cell.strategy, r.cell.compile): r for r in expand(_experiment(), load_site("local"))}
    assert len(rows) == 6
    assert rows["ddp", True].base_id == rows["sequential", True].cell.id
    assert rows["ddp", False].base_id == rows["sequential", False].cell.id
    assert [key for key, row in rows.items() if row.unsupported] == [("gpipe", True)]
    written = {"dataset": "mnist", "network": "resnet18", "strategy": "gpipe", "geometry": "1x2"}
    by_hand = _experiment(include=[{**written, "compile": True}])
    with pytest.raises(ConfigError, match="torch.compile is not used with strategy gpipe"):
        expand(by_hand, load_site("local"))


def test_ddp_needs_buckets_that_torchs_compiler_takes():
    compiled, small = CELL.with_(compile=True), (("bucket_cap_bytes", 4096),)
    ddp = strategy_of("ddp")
    assert ddp.supports(compiled) is None
    assert ddp.supports(CELL.with_(options=small)) is None
    reason = ddp.supports(compiled.with_(options=small))
    assert reason.code == "conflicting_options"
    assert "1048576 bytes or more" in reason


def test_emulated_accelerators_compute_nothing_to_compile():
    reason = Accelerator("somewhere").supports(CELL.with_(compile=True))
    assert reason.code == "cannot_compile"


def test_profiles_predict_no_compiled_cell(tmp_path):
    with pytest.raises(ConfigError, match="not compiled"):
        Inputs("local", tmp_path).workload(CELL.with_(compile=True))
