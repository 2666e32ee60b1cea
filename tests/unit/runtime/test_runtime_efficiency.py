"""Peak, energy and processor time of ranks, and the parts of a result that are made of them."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import pytest
import torch
from cases.rank_reports import rank_report

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.training import Efficiency, Energy
from ddlbench.networks.factory import training_flops
from ddlbench.planning.planner import make_plan
from ddlbench.runtime import energy
from ddlbench.runtime import result as parts
from ddlbench.runtime.energy import EnergyMeter, added, measured_by_rank, taken
from ddlbench.runtime.meters import Usage, Utilisation, mean_usage
from ddlbench.runtime.result import timing_of

CELL = Cell(
    dataset="mnist",
    network="resnet18",
    strategy="ddp",
    batch_size=8,
    devices_per_node=2,
    epochs=2,
    warmup_steps=0,
)
CPU = (torch.device("cpu"),)


def _reports(count: int = 2, **changes):
    timed = {
        "step_s": (0.5,) * 4,
        "load_s": (0.0,) * 4,
        "dataset_samples": 16,
        "peak_flops_per_s": 4e9,
        "measured_s": 2.0,
        **changes,
    }
    return [rank_report(rank=rank, shard=rank, **timed) for rank in range(count)]


def _efficiency(reports):
    made = parts.efficiency(CELL, reports, timing_of(CELL, reports, "cpu"))
    assert Efficiency.from_dict(made.to_dict()) == made
    return made


def _energy(reports):
    made = parts.energy(reports, timing_of(CELL, reports, "cpu"))
    assert Energy.from_dict(made.to_dict()) == made
    return made


def test_utilisation_is_operations_of_a_step_over_what_all_devices_can():
    first, second = _reports()
    made = _efficiency([dataclasses.replace(first, sample_flops=10**8), second])
    assert made.flops_per_step == 8 * 10**8
    assert made.flops_per_s == pytest.approx(1.6e9)  # 0.5 s a step
    assert made.peak_flops_per_s == 8e9
    assert (made.mfu, made.devices, made.missing) == (pytest.approx(0.2), 2, None)


def test_a_server_has_no_share_in_the_peak():
    first, second = _reports()
    server = rank_report(rank=2, shard=-1, role="server", step_s=(0.5,) * 4, load_s=(0.0,) * 4)
    made = _efficiency([dataclasses.replace(first, sample_flops=10**8), second, server])
    assert (made.peak_flops_per_s, made.devices) == (8e9, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peak_flops_per_s": None, "efficiency_missing": "no peak: made up"}, "no peak: made up"),
        ({"peak_flops_per_s": None, "sample_flops": 7}, "a rank ended before it had measured"),
        ({}, "a rank ended before it had measured"),
    ],
)
def test_without_a_number_there_is_a_reason(changes, reason):
    made = _efficiency(_reports(**changes))
    assert (made.mfu, made.missing) == (None, reason)


def test_an_emulated_accelerator_has_no_utilisation(monkeypatch):
    monkeypatch.setenv("DDLBENCH_ACCELERATOR", json.dumps({"profiles": "somewhere"}))
    (process, _) = make_plan(CELL).processes
    actual = measured_by_rank(CELL, process, CPU)
    assert list(actual) == ["efficiency_missing"]
    assert "emulated" in actual["efficiency_missing"]


def test_only_the_first_rank_counts_and_a_failure_costs_only_the_number(monkeypatch):
    monkeypatch.setattr(energy, "SIDE", {"cpu": 64})
    first, second = make_plan(CELL).processes
    actual = measured_by_rank(CELL, first, CPU)
    assert actual["sample_flops"] == training_flops("resnet18", DATASETS["mnist"])
    assert actual["peak_flops_per_s"] > 0
    assert set(measured_by_rank(CELL, second, CPU)) == {"peak_flops_per_s"}

    def full(*_, **_settings):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(energy, "_speed_at", full)
    reason = measured_by_rank(CELL, first, CPU)["efficiency_missing"]
    assert reason == "no peak: OutOfMemoryError: no room"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_peak_is_of_all_devices_of_the_process_at_once(monkeypatch, precision):
    """Two devices multiply in threads of their own, in the cell's precision."""
    monkeypatch.setattr(energy, "SIDE", {"cpu": 64})
    seen = []
    both = threading.Barrier(2, timeout=30)

    def products(_device, kind, _side, longest_s):
        seen.append(kind)
        both.wait()
        return 3.0

    monkeypatch.setattr(energy, "_speed_at", products)
    assert energy.peak_flops_per_s(CPU * 2, precision) == 6.0
    assert set(seen) == {torch.bfloat16 if precision == "bf16" else torch.float32}


def test_a_peak_halves_its_matrices_until_they_fit_and_are_fast(monkeypatch):
    sides = []

    def products(_device, _kind, side, longest_s):
        sides.append(side)
        if side > 600:
            raise torch.OutOfMemoryError
        return None if longest_s < 0.2 else 1.0

    monkeypatch.setattr(energy, "_speed_at", products)
    assert energy.peak_flops_per_s(CPU, "fp32") == 1.0
    assert sides == [1024, 512, 256]


def _rapl(folder: Path, name: str, microjoules: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(str(microjoules))
    (folder / "max_energy_range_uj").write_text("1000000")
    return folder / "energy_uj"


def test_rapl_counts_packages_and_memory_over_a_wrap(tmp_path):
    package = _rapl(tmp_path / "intel-rapl:0", "package-0", 900_000)
    memory = _rapl(tmp_path / "intel-rapl:0:1", "dram", 0)
    _rapl(tmp_path / "intel-rapl:0:0", "core", 5)
    meter = EnergyMeter(CPU, of_host=True, powercap=tmp_path)
    before = meter.read()
    package.write_text("100000")
    memory.write_text("50000")
    assert taken(before, meter.read()) == {
        "rapl intel-rapl:0 package-0": pytest.approx(0.2),
        "rapl intel-rapl:0:1 dram": pytest.approx(0.05),
    }
    memory.unlink()
    assert list(meter.read()) == ["rapl intel-rapl:0 package-0"]
    assert meter.missing == [
        "rapl intel-rapl:0:1 dram: its counter could not be read during training"
    ]


def test_without_counters_there_is_a_reason(tmp_path):
    assert EnergyMeter(CPU, of_host=False, powercap=tmp_path).missing == []
    meter = EnergyMeter(CPU, of_host=True, powercap=tmp_path)
    assert (meter.read(), meter.missing) == (
        {},
        [f"host: there are no counters of RAPL in {tmp_path}"],
    )
    folder = tmp_path / "intel-rapl:0"
    _rapl(folder, "package-0", 1).unlink()
    (folder / "energy_uj").mkdir()
    (reason,) = EnergyMeter(CPU, of_host=True, powercap=tmp_path).missing
    assert reason == f"host: {folder / 'energy_uj'} cannot be read (Is a directory)"


def test_a_counter_that_two_ranks_read_counts_once():
    gpu, package = "nvml GPU-1", "rapl intel-rapl:0 package-0"
    first, second = _reports()
    first = dataclasses.replace(first, energy_j={gpu: 30.0, package: 10.0})
    second = dataclasses.replace(second, energy_j={gpu: 32.0}, energy_missing=("made up",))
    made = _energy([first, second])
    assert made.energy_j == 42.0
    assert made.energy_per_sample_j == pytest.approx(42.0 / 32)
    assert made.mean_power_w == pytest.approx(21.0)
    assert (made.covers, made.missing) == (("gpu", "host"), ("made up",))
    assert [domain.domain for domain in made.domains] == ["GPU-1", "intel-rapl:0 package-0"]


def test_nothing_counted_is_no_energy():
    made = _energy(_reports(energy_missing=("host: made up",)))
    assert (made.energy_j, made.energy_per_sample_j, made.domains) == (None, None, ())
    assert made.missing == ("host: made up",)


def test_usage_of_parts_adds_up_where_all_parts_know_it():
    parts_of_run = [
        Usage(1.0, 0.5, None, cpu_s=0.5, energy_j={"a": 1.0, "b": 2.0}),
        Usage(3.0, 0.9, None, cpu_s=2.7, energy_j={"a": 4.0}),
    ]
    whole = mean_usage([mean_usage(()), *parts_of_run])
    assert (whole.cpu_s, whole.energy_j) == (pytest.approx(3.2), {"a": 5.0})
    earlier = Usage(1.0, 0.5, None)  # from a checkpoint of an earlier version
    assert mean_usage([earlier, *parts_of_run]).cpu_s is None
    assert added([]) == {}


def test_utilisation_reads_counters_around_the_work(tmp_path):
    package = _rapl(tmp_path / "intel-rapl:0", "package-0", 0)
    with Utilisation(CPU, 1, EnergyMeter(CPU, of_host=True, powercap=tmp_path)) as measured:
        package.write_text("700000")
    assert measured.usage.energy_j == {"rapl intel-rapl:0 package-0": pytest.approx(0.7)}
    assert measured.usage.cpu_s >= 0
