"""What an experiment will cost, from its matrix and from results that are there."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from planning_factory import block, write_site

from ddlbench.commands.options import snakemake_command
from ddlbench.commands.plan import plan_lines
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import Profiling, parse_experiment
from ddlbench.experiment.dataset_spec import DataRequest, estimate_bytes
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import GivenLinks, Interconnect, Site, Slurm, load_site
from ddlbench.experiment.status import Reason
from ddlbench.planning.block_costs import block_costs
from ddlbench.planning.budget import Budget, cells_to_run, estimate, finished_rows
from ddlbench.planning.device_table import table_for
from ddlbench.planning.expected_time import START_S, UserParts
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.strategy import strategy_of

LOCAL = Site(
    name="here",
    description="",
    device="cpu",
    launcher="local",
    nodes=4,
    devices_per_node=4,
    cpus_per_device=1,
    memory_per_device_mb=None,
    scratch="/tmp",
    keep_data=True,
    interface=None,
    cell_timeout_s=600,
    hang_timeout_s=600,
)
WHOLE_NODES = replace(LOCAL, launcher="slurm", slurm=Slurm(exclusive=True))
SHARED_NODES = replace(LOCAL, launcher="slurm", slurm=Slurm(exclusive=False))

RESULT = json.loads(
    (Path(__file__).parents[3] / "benchmarks" / "scale" / "result.json").read_text("utf-8")
)
BASE = Cell("mnist", "resnet18", "sequential", batch_size=32)
DDP = BASE.with_(strategy="ddp", devices_per_node=2)
GPIPE = BASE.with_(strategy="gpipe", devices_per_node=2)


def _rows(*cells: Cell, base: Cell | None = BASE) -> list[MatrixRow]:
    return [MatrixRow(cell, base.id if base else None, None) for cell in cells]


def _finish(root: Path, cell: Cell, elapsed_s: float = 10.0, **changes: Any) -> Path:
    """Leave a result of a cell that took so long; no step of it was timed."""
    path = root / "here" / "cells" / cell.id / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    of_cell = {"site": "here", "cell_id": cell.id, "elapsed_s": elapsed_s, "timing": _timed(None)}
    path.write_text(json.dumps({**RESULT, **of_cell, **changes}))
    return path


def _timed(step_s: float | None, steps: int = 10) -> dict[str, Any]:
    elapsed_s = steps * (step_s or 1.0)
    epoch = {"epoch": 1, "steps": steps, "samples": 1, "elapsed_s": elapsed_s, "load_s": 0.0}
    timing = RESULT["timing"]
    return {**timing, "step_s": {**timing["step_s"], "mean_s": step_s}, "epochs": [epoch]}


EXPERIMENT = parse_experiment(
    {
        "experiment": "trial",
        "site": "here",
        "matrix": {
            "dataset": ["mnist"],
            "network": ["vgg11"],
            "strategy": ["ddp"],
            "geometry": ["1x2"],
        },
    },
    where="config/config.yaml",
)


def _shown(rows: list[MatrixRow], site: Site, root: Path) -> str:
    cost, to_run = estimate(rows, site, root), cells_to_run(rows, finished_rows(rows, site, root))
    return " ".join(" ".join(plan_lines(cost, EXPERIMENT, site, rows, to_run)).split())


# Counting ----------------------------------------------------------------------------------------


def test_nothing_is_there(tmp_path: Path) -> None:
    cost = estimate(_rows(BASE, DDP, GPIPE), LOCAL, tmp_path)
    assert (cost.cells, cost.done, cost.to_run, cost.unsupported) == (3, 0, 3, 0)
    assert cost.device_s_upper == (1 + 2 + 2) * 600
    assert cost.device_s_expected is None
    assert (cost.cells_known_by_strategy, cost.cells_known_by_network, cost.cells_unknown) == (
        0,
        0,
        3,
    )
    assert cost.slurm_jobs == 0
    assert cost.warnings == ()


def test_every_cell_is_counted_once(tmp_path: Path) -> None:
    _finish(tmp_path, BASE)
    reason = "it spans nodes"
    broken = [MatrixRow(GPIPE.with_(nodes=n), BASE.id, reason) for n in (2, 4)]
    _finish(tmp_path, broken[0].cell, status="unsupported")
    cost = estimate([*_rows(BASE, DDP), *broken], LOCAL, tmp_path)
    assert (cost.cells, cost.done, cost.to_run, cost.unsupported) == (4, 1, 1, 2)
    assert cost.unsupported_reasons == {reason: 2}


@pytest.mark.parametrize(
    ("status", "done"),
    [("ok", 1), ("out_of_memory", 1), ("unsupported", 1), ("timeout", 1), ("failed", 0)],
)
def test_which_results_are_done(tmp_path: Path, status: str, done: int) -> None:
    _finish(tmp_path, BASE, status=status)
    cost = estimate(_rows(BASE), LOCAL, tmp_path)
    assert (cost.done, cost.to_run) == (done, 1 - done)
    assert cost.done_statuses == ({status: 1} if done else {})
    assert len(cost.warnings) == 1 - done


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 0},
        {"schema_version": None},
        {"status": "fine"},
        {"status": None},
        {"cell_id": DDP.id},
        {"site": "there"},
        {"processes": 2.5},
        {"timing": None},
        {"elapsed_s": "10"},
        {"elapsed_s": -1},
        {"elapsed_s": None},
        {"elapsed_s": True},
    ],
)
def test_a_result_that_is_none_must_run_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    _finish(tmp_path, BASE, **changes)
    cost = estimate(_rows(BASE), LOCAL, tmp_path)
    assert (cost.done, cost.to_run, cost.cells_unknown) == (0, 1, 1)
    (warning,) = cost.warnings
    assert warning.startswith("result.json of 1 cell: ")
    assert warning.endswith(f"; it is put aside and measured again (first: {BASE.id})")


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({"schema_version": 999, "timing": None}, "schema 999; this checkout reads 1"),
        ({"schema_version": 2.5, "status": "fine"}, "schema 2.5; this checkout reads 1"),
        ({"brand_new": 1}, "brand_new is not known here"),
        ({"timing": {**RESULT["timing"], "further": {}}}, "timing.further is not known here"),
    ],
)
def test_nobody_measures_over_a_result_of_a_newer_version(
    tmp_path: Path, changes: dict[str, Any], sign: str
) -> None:
    _finish(tmp_path, BASE, **changes)
    cost = estimate(_rows(BASE, DDP), LOCAL, tmp_path)
    assert (cost.cells, cost.done, cost.to_run, cost.left) == (2, 0, 1, 1)
    (warning,) = cost.warnings
    assert sign in warning
    assert "written by a newer ddlbench" in warning
    assert "ddlbench status forget --state newer" in warning
    assert "1 left as they are" in _shown(_rows(BASE, DDP), LOCAL, tmp_path)


def test_a_newer_key_in_a_result_that_does_not_fit_either_is_no_sign(tmp_path: Path) -> None:
    _finish(tmp_path, BASE, brand_new=1, processes="two")
    assert estimate(_rows(BASE), LOCAL, tmp_path).to_run == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"text"', "\x00", "{}", '{"elapsed_s": NaN}'])
def test_a_broken_file_must_run_again(tmp_path: Path, text: str) -> None:
    _finish(tmp_path, BASE).write_text(text)
    assert estimate(_rows(BASE), LOCAL, tmp_path).to_run == 1


def test_a_file_that_is_no_text_must_run_again(tmp_path: Path) -> None:
    _finish(tmp_path, BASE).write_bytes(b"\xff\xfe\xfd")
    assert estimate(_rows(BASE), LOCAL, tmp_path).to_run == 1


def test_a_folder_that_is_no_cell_is_passed_over(tmp_path: Path) -> None:
    _finish(tmp_path, BASE)
    stray = tmp_path / "here" / "cells" / "mnist" / "resnet18" / "ddp" / "old" / "x" / "rep0"
    stray.mkdir(parents=True)
    (stray / "result.json").write_text("{}")
    cost = estimate(_rows(BASE), LOCAL, tmp_path)
    assert (cost.done, cost.warnings) == (1, ())


def test_networks_of_other_packages_are_found(tmp_path: Path) -> None:
    cell = BASE.with_(network="my_package.models:tiny")
    _finish(tmp_path, cell)
    assert estimate(_rows(cell), LOCAL, tmp_path).done == 1


# Time --------------------------------------------------------------------------------------------


def test_expectation_prefers_what_is_most_alike(tmp_path: Path) -> None:
    wide = DDP.with_(devices_per_node=4)
    cost = estimate(_rows(DDP.with_(repeat=1)), LOCAL, tmp_path)
    assert cost.device_s_expected is None
    _finish(tmp_path, GPIPE, 70.0)
    cost = estimate(_rows(DDP.with_(repeat=1)), LOCAL, tmp_path)
    assert (cost.device_s_expected, cost.cells_known_by_network) == (2 * 70.0, 1)
    _finish(tmp_path, wide, 50.0)
    cost = estimate(_rows(DDP.with_(repeat=1)), LOCAL, tmp_path)
    assert (cost.device_s_expected, cost.cells_known_by_strategy) == (2 * 50.0, 1)
    _finish(tmp_path, DDP, 30.0)
    cost = estimate(_rows(DDP.with_(repeat=1)), LOCAL, tmp_path)
    assert (cost.device_s_expected, cost.cells_known_by_strategy) == (2 * 30.0, 1)


def test_expectation_is_a_median(tmp_path: Path) -> None:
    for repeat, elapsed_s in enumerate([10.0, 11.0, 90.0]):
        _finish(tmp_path, BASE.with_(repeat=repeat), elapsed_s)
    cost = estimate(_rows(BASE.with_(repeat=3)), LOCAL, tmp_path)
    assert cost.device_s_expected == 11.0


@pytest.mark.parametrize(
    "changes",
    [
        {"data_scale": 0.1},
        {"epochs": 1},
        {"max_steps": 5},
        {"network": "vgg11"},
        {"dataset": "cifar10"},
    ],
)
def test_other_work_tells_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    _finish(tmp_path, BASE.with_(**changes))
    cost = estimate([*_rows(DDP), *_rows(DDP.with_(**changes))], LOCAL, tmp_path)
    assert cost.cells_unknown == 1
    assert cost.cells_known_by_network == 1


@pytest.mark.parametrize("status", ["out_of_memory", "timeout", "failed", "unsupported"])
def test_what_was_cut_short_tells_nothing(tmp_path: Path, status: str) -> None:
    _finish(tmp_path, BASE, status=status)
    assert estimate(_rows(DDP), LOCAL, tmp_path).device_s_expected is None


def test_expectation_covers_known_cells_only(tmp_path: Path) -> None:
    _finish(tmp_path, BASE, 20.0)
    cost = estimate(_rows(BASE, DDP, DDP.with_(network="vgg11")), LOCAL, tmp_path)
    assert cost.device_s_expected == 2 * 20.0
    assert (cost.cells_known_by_network, cost.cells_unknown) == (1, 1)


def test_whole_nodes_are_held(tmp_path: Path) -> None:
    rows = _rows(BASE, DDP.with_(nodes=2, devices_per_node=4))
    shared, whole = (estimate(rows, site, tmp_path) for site in (SHARED_NODES, WHOLE_NODES))
    assert shared.device_s_upper == (1 + 8) * 600
    assert whole.device_s_upper == (4 + 8) * 600
    assert shared.warnings == ()
    assert whole.warnings == (
        "1 of 2 cells to run uses part of a node, but slurm.exclusive holds whole nodes; "
        "the device-hours count all of their devices",
    )


# Jobs and disk -----------------------------------------------------------------------------------


def test_jobs(tmp_path: Path) -> None:
    _finish(tmp_path, DDP.with_(nodes=4, devices_per_node=4))
    rows = _rows(BASE, DDP.with_(nodes=2), DDP.with_(devices_per_node=4))
    cost = estimate([*rows, *_rows(DDP.with_(nodes=4, devices_per_node=4))], SHARED_NODES, tmp_path)
    assert cost.slurm_jobs == cost.to_run == 3
    assert (cost.largest_nodes, cost.largest_devices) == (2, 4)  # 2x2, as wide as 1x4


def test_what_plans_are_made_from_is_counted_until_it_is_there(tmp_path: Path) -> None:
    pipelines = [
        BASE.with_(strategy="pipedream", devices_per_node=2, options=(("balance", "profile"),)),
        BASE.with_(strategy="pipedream", devices_per_node=4, options=(("balance", "profile"),)),
    ]
    cost = estimate(_rows(BASE, *pipelines), WHOLE_NODES, tmp_path)
    assert cost.measured_first == 2  # one profile and the links, for both
    assert cost.slurm_jobs == 3 + 2
    shown = _shown(_rows(BASE, *pipelines), WHOLE_NODES, tmp_path)
    assert "2 profile or links files measured first" in shown
    for path in strategy_of("pipedream").measured_inputs(pipelines[0], WHOLE_NODES.name):
        there = tmp_path / path.relative_to(RESULTS)
        there.parent.mkdir(parents=True)
        there.write_text("{}")
    cost = estimate(_rows(BASE, *pipelines), WHOLE_NODES, tmp_path)
    assert (cost.measured_first, cost.slurm_jobs) == (0, 3)


def test_predictions_need_profiles_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = _rows(BASE, DDP)
    cost = estimate(rows, LOCAL, tmp_path)
    settings = Profiling(budget_s=40 - START_S, runs=3)
    predicting = replace(EXPERIMENT, predict=True, profile=settings)
    text = " ".join(" ".join(plan_lines(cost, predicting, LOCAL, rows, [BASE, DDP])).split())
    assert "1 profile too, about 2.0 min each, and links, about " in text
    assert "profile too" not in _shown(rows, LOCAL, tmp_path)


def test_disk_of_a_node(tmp_path: Path) -> None:
    cells = [
        BASE,
        DDP,  # the same data
        BASE.with_(seed=1),
        BASE.with_(data_scale=0.5),
        BASE.with_(data_format="raw"),
        BASE.with_(dataset="highres"),
    ]
    sizes = [
        estimate_bytes(DataRequest("mnist")),
        estimate_bytes(DataRequest("mnist", seed=1)),
        estimate_bytes(DataRequest("mnist", scale=0.5)),
        estimate_bytes(DataRequest("mnist", data_format="raw")),
        estimate_bytes(DataRequest("highres")),
    ]
    assert estimate(_rows(*cells), LOCAL, tmp_path).node_disk_bytes == sum(sizes)
    fresh = replace(LOCAL, keep_data=False)
    assert estimate(_rows(*cells), fresh, tmp_path).node_disk_bytes == max(sizes)


def test_own_data_and_finished_cells_need_no_disk(tmp_path: Path) -> None:
    site = replace(LOCAL, real_data={"mnist": "/data/mnist"})
    _finish(tmp_path, BASE.with_(dataset="imagenet"))
    rows = _rows(BASE.with_(data_source="real"), BASE.with_(dataset="imagenet"))
    cost = estimate(rows, site, tmp_path)
    assert cost.to_run == 1
    assert cost.node_disk_bytes == 0


# Warnings and what is shown ----------------------------------------------------------------------


def test_cells_without_a_base(tmp_path: Path) -> None:
    cost = estimate([*_rows(BASE), *_rows(DDP, GPIPE, base=None)], LOCAL, tmp_path)
    assert cost.warnings == (
        "2 cells have no sequential base, so no speed-up can be shown: add 'sequential' to "
        f"matrix.strategy, or their base to include (first: {DDP.id})",
    )


def test_cells_whose_base_cannot_run(tmp_path: Path) -> None:
    cost = estimate([MatrixRow(BASE, BASE.id, "too small"), *_rows(DDP)], LOCAL, tmp_path)
    assert cost.warnings == (
        "1 cell has a sequential base that cannot run, so no speed-up can be shown "
        f"(first: {DDP.id})",
    )


def test_it_is_data(tmp_path: Path) -> None:
    _finish(tmp_path, BASE)
    cost = estimate(_rows(BASE, DDP), WHOLE_NODES, tmp_path)
    again = json.loads(json.dumps(asdict(cost)))
    texts = {name: tuple(again[name]) for name in ("data", "warnings")}
    assert Budget(**{**again, **texts}) == cost


def test_what_is_shown(tmp_path: Path) -> None:
    _finish(tmp_path, BASE, 3600.0)
    _finish(tmp_path, GPIPE, 3600.0, status="timeout")
    rows = [
        *_rows(BASE, DDP, DDP.with_(dataset="cifar10"), GPIPE),
        MatrixRow(GPIPE.with_(nodes=2), BASE.id, "one [node] only"),
    ]
    text = _shown(rows, replace(SHARED_NODES, cell_timeout_s=3600), tmp_path)
    for words in (
        "trial on here: 5 cells, 2 to run, 2 done (1 timeout), 1 cannot run",
        "about 2.0 device-hours, 60 min a cell (1 as measured with another strategy, 1 unknown "
        "and not counted); at most 4.0 device-hours (time-outs)",
        "2 SLURM jobs; largest cell 1 node, 2 devices",
        "to run ddp 2",
        "cannot run gpipe, 1 cell: one [node] only",
        "Next: snakemake --profile profiles/slurm",
    ):
        assert words in text


def test_of_several_networks_those_that_cannot_run_are_named(tmp_path: Path) -> None:
    reason = Reason("uncut", "it is one block")
    rows = [*_rows(BASE), MatrixRow(GPIPE.with_(network="mine:unet"), BASE.id, reason)]
    shown = _shown(rows, LOCAL, tmp_path)
    assert "cannot run gpipe with mine:unet, 1 cell: it is one block" in shown


def test_the_next_command_quotes_a_file_with_a_blank() -> None:
    experiment = replace(EXPERIMENT, where="mein Versuch ä.yaml")
    words = shlex.split(snakemake_command(experiment, LOCAL, "profiles"))
    assert words[1] == "profiles"
    assert words[words.index("--configfile") + 1] == experiment.where


def test_the_next_command_leaves_the_path_of_a_site_as_the_file_has_it() -> None:
    experiment = replace(EXPERIMENT, site=f"elsewhere/{LOCAL.name}.yaml")
    assert "site=" not in snakemake_command(experiment, LOCAL)
    assert f"site={LOCAL.name}" in snakemake_command(replace(EXPERIMENT, site="other"), LOCAL)


def test_what_is_shown_when_all_is_done(tmp_path: Path) -> None:
    _finish(tmp_path, BASE)
    text = _shown(_rows(BASE), WHOLE_NODES, tmp_path)
    assert text.startswith("trial on here: 1 cell, 0 to run, 1 done, 0 cannot run Nothing to run.")


def test_the_yaml_that_lets_pipelines_of_own_networks_run_is_shown(tmp_path: Path) -> None:
    cell = GPIPE.with_(strategy="pipe-1f1b", network="studentnets.models:vit")
    reason = Reason("unknown_blocks", "its blocks are not known; write balance: profile")
    text = _shown([MatrixRow(cell, None, reason)], LOCAL, tmp_path)
    assert "pipe-1f1b, 1 cell: its balance reads a table of built-in networks" in text
    assert "Write into config/config.yaml: strategies: pipe-1f1b: {balance: profile}" in text


def test_nothing_known_is_said(tmp_path: Path) -> None:
    text = _shown(_rows(BASE, DDP), LOCAL, tmp_path)
    assert "time unknown, at most 20 min (time-outs): no step was measured here. " in text
    assert "about 55 s per network): snakemake profiles --profile profiles/local" in text


def test_other_amounts_of_work_are_scaled_by_measured_steps(tmp_path: Path) -> None:
    short = BASE.with_(max_steps=10, epochs=1, warmup_steps=0)
    _finish(tmp_path, short, 7.0, timing=_timed(0.5))  # 5 s of steps, 2 s of start
    wanted = short.with_(max_steps=100)
    cost = estimate(_rows(wanted), LOCAL, tmp_path)
    assert cost.run_s_expected == pytest.approx(2 + 100 * 0.5)
    assert (cost.cells_known_by_steps, cost.cells_unknown) == (1, 0)
    twice = wanted.with_(batch_size=64)
    assert estimate(_rows(twice), LOCAL, tmp_path).run_s_expected == pytest.approx(2 + 100 * 1.0)


def test_operations_and_a_measured_rate_tell_of_other_networks(tmp_path: Path) -> None:
    short = BASE.with_(max_steps=10, epochs=1, warmup_steps=0)
    _finish(tmp_path, short, 7.0, timing=_timed(0.5))
    other = short.with_(network="resnet50")
    ratio = sum(b.work for b in block_costs(other.network, other.dataset) or ()) / sum(
        b.work for b in block_costs(short.network, short.dataset) or ()
    )
    cost = estimate(_rows(other), LOCAL, tmp_path)
    assert cost.run_s_expected == pytest.approx(2 + 10 * 0.5 * ratio)
    assert cost.cells_known_by_operations == 1
    own_cell = short.with_(network="my.models:net")
    assert estimate(_rows(own_cell), LOCAL, tmp_path).cells_unknown == 1
    twice = sum(b.work for b in block_costs(short.network, short.dataset) or ()) * 2
    parts = UserParts(operations={("my.models:net", "mnist"): twice})
    known = estimate(_rows(own_cell), LOCAL, tmp_path, parts)
    assert known.run_s_expected == pytest.approx(2 + 10 * 0.5 * 2)
    text = _shown(_rows(other), LOCAL, tmp_path)
    assert "from operations, roughly" in text


def test_own_data_has_its_own_number_of_steps(tmp_path: Path) -> None:
    site = replace(LOCAL, real_data={"mnist": "/data/mnist"})
    short = BASE.with_(max_steps=10, epochs=1, warmup_steps=0)
    _finish(tmp_path, short, 7.0, timing=_timed(0.5))
    real = BASE.with_(epochs=1, warmup_steps=0, data_source="real")
    parts = UserParts(images={("mnist", 1): 64}, remarks=("a remark",))
    cost = estimate(_rows(real), site, tmp_path, parts)
    assert cost.run_s_expected == pytest.approx(2 + 2 * 0.5)
    assert cost.warnings == ("a remark",)


@pytest.mark.parametrize(
    ("samples", "max_steps", "left"),
    [(54, None, 22), (64, None, 0), (54, 1, 22), (70, 1, 0), (20, None, 0), (3203, None, 0)],
)
def test_many_samples_that_fill_no_batch_are_told(samples, max_steps, left, tmp_path) -> None:
    real = BASE.with_(epochs=1, data_source="real", max_steps=max_steps)
    few = real.with_(batch_size=4)  # leaves two samples at most
    parts = UserParts(images={("mnist", 1): samples})
    site = replace(LOCAL, real_data={"mnist": "/data/mnist"})
    warnings = estimate(_rows(real, few, base=real), site, tmp_path, parts).warnings
    notes = [warning for warning in warnings if "left over" in warning]
    assert len(notes) == bool(left)
    if left:
        start = f"{left} of {samples} samples of mnist are left over in each epoch, as they fill no"
        assert notes[0].startswith(f"{start} whole batch of 32")


def test_a_profile_tells_the_steps_and_a_default_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_site([block(0, 0.3), block(1, 0.3)], network="resnet18")  # seconds of a sample
    cell = BASE.with_(max_steps=10, epochs=1, warmup_steps=0)
    cost = estimate(_rows(cell), LOCAL, RESULTS)
    assert cost.cells_known_by_profile == 1
    assert cost.run_s_expected == pytest.approx(START_S + 10 * 32 * 0.6)


@pytest.mark.slow
def test_thousands_of_results(tmp_path: Path) -> None:
    cells = [DDP.with_(seed=seed, repeat=repeat) for seed in range(500) for repeat in range(10)]
    ballast = {"ranks": RESULT["ranks"] * 8}
    for cell in cells:
        _finish(tmp_path, cell, **ballast)
    rows = _rows(*cells)
    started = time.perf_counter()
    cost = estimate(rows, LOCAL, tmp_path)
    print(f"5,000 results read in {time.perf_counter() - started:.2f} s")
    assert cost.done == 5000


def test_a_cell_over_an_emulated_fabric_holds_one_node(tmp_path: Path) -> None:
    lat1 = LinkCondition(latency_s=0.001, bandwidth_bits_per_s=None, loss=0.0)
    slow = DDP.with_(nodes=2, fabric="lat1")
    for site, devices in ((WHOLE_NODES, 4), (SHARED_NODES, 4), (LOCAL, 4)):
        cost = estimate(_rows(BASE, slow), replace(site, fabrics={"lat1": lat1}), tmp_path)
        alone = estimate(_rows(BASE), site, tmp_path)
        assert cost.device_s_upper - alone.device_s_upper == 600 * devices
        assert cost.largest_devices == 4
        assert cost.largest_nodes == (2 if site is LOCAL else 1)


def test_a_fabric_that_nobody_emulates_is_told(tmp_path: Path) -> None:
    lat1 = LinkCondition(latency_s=0.001, bandwidth_bits_per_s=None, loss=0.0)
    site = replace(
        LOCAL, fabrics={"lat1": lat1}, interconnect=Interconnect(links={"given": GivenLinks()})
    )
    cells = [DDP.with_(nodes=2, fabric=fabric) for fabric in ("lat1", "lat01", "given")]
    (warning,) = estimate(_rows(BASE, *cells), site, tmp_path).warnings
    assert "does not emulate fabric 'lat01'" in warning
    assert "did you mean 'lat1'?" in warning


def test_emulated_devices_take_the_time_of_their_profile(tmp_path: Path) -> None:
    """Known before anything ran: no profile of the site itself is needed."""
    site = load_site("accelerators")
    assert site.accelerator is not None
    cell = Cell("cifar10", "vgg11", "sequential", batch_size=24, data_scale=0.005, epochs=1)
    cell = cell.with_(warmup_steps=2, max_steps=6)
    step_s = sum(table_for(site.accelerator, "cifar10", "vgg11").pass_s(24))
    cost = estimate(_rows(cell, base=cell), site, tmp_path)
    assert cost.cells_known_by_profile == 1
    assert cost.run_s_expected == pytest.approx(START_S + 8 * site.accelerator.slow_down * step_s)
