"""Part 4: contention on one GPU, NVIDIA's tests, Horovod with NCCL, FSDP2, half precision, compile.

::

    timings    contention | bf16 | fp16
    build                       | Horovod ..................... |
    functions                   | FSDP2 | compile | links | p2p | Horovod's cell

Horovod compiles while checks run that time nothing.
"""

from __future__ import annotations

import math
import shutil
import statistics
import sysconfig
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ddlbench.datasets.staging import stage
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.links import Links
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.result import Result
from ddlbench.experiment.site import Interconnect, Site
from ddlbench.experiment.status import Status
from ddlbench.interconnect.measure import LinksFailed, measure_links
from ddlbench.interconnect.nvidia_programs import find_nvbandwidth, find_or_build_p2p
from ddlbench.interconnect.p2p import run_nvbandwidth, run_p2p
from ddlbench.planning.planner import request_of
from ddlbench.profiling.steps import slowdowns
from ddlbench.runtime.rank_job import run_rank_job
from gpu_parts.carry import on_path
from gpu_parts.clock import furthest, losses_of
from gpu_parts.horovod_build import Build, where_installed
from gpu_parts.study import PASSED, NotHere, Study, Verdict, in_process, median_step_s

__all__ = ["run"]

_HOROVOD = "Horovod with NCCL"
_LOSS_LIMIT = 1e-3  # relative
_FSDP_LIMIT = 1e-4  # relative
_HALF_LIMIT = 0.05  # relative, of the mean of the last losses
_LAST_LOSSES = 5
_FEWEST_SLOWDOWN = 0.95
_BUILD_LIMIT_S = 240.0
_CELL_S = 40.0  # kept of the part's time for the cell that follows the build
_COMPILE_STEPS = 3


def run(study: Study) -> None:
    """All checks of this part."""
    on_path(study.folder / "site")
    study.check("contention of two ddp ranks", lambda: _contention(study), needs_s=60)
    for precision in ("bf16", "fp16"):
        study.check(precision, partial(_half, study, precision), needs_s=30)
    building = _Building(study)
    try:
        study.check("FSDP2", lambda: _fsdp(study), needs_s=30)
        study.check("torch.compile", lambda: _compile(study), needs_s=60)
        study.check("device copies, one GPU", lambda: _links(study), needs_s=45)
        study.check("p2pBandwidthLatencyTest", lambda: _p2p(study), needs_s=30)
        study.check("nvbandwidth", lambda: _nvbandwidth(study), needs_s=20)
        study.check(_HOROVOD, lambda: _horovod(study, building), needs_s=_CELL_S)
    finally:
        building.stop()


class _Building:
    """Horovod's compilation, where there is something to compile; what is wrong is told later.

    Attributes:
        how: this machine came to its Horovod, for the table.
    """

    def __init__(self, study: Study) -> None:
        self.build: Build | None = None
        self.error: Exception | None = None
        self.how = "compiled here"
        is_done = any(row.check == _HOROVOD and row.status == PASSED for row in study.rows)
        if is_done:
            return
        where = where_installed()
        if where is not None:
            is_own = where.resolve() == (study.folder / "site").resolve()
            self.how = "from the wheels beside the results" if is_own else f"installed in {where}"
            return
        if study.device == "cpu":
            self.error = NotHere("Horovod is not installed, and is compiled here for GPUs only")
            return
        try:
            self.build = Build(study.carried, study.work, study.folder / "site")
        except Exception as error:  # told by the check that needs it
            self.error = error

    def wait(self, limit_s: float) -> float | None:
        """Seconds that it took; None where Horovod was installed before."""
        if self.error is not None:
            raise self.error
        if self.build is None:
            return None
        self.build.wait(limit_s)
        return self.build.seconds

    def stop(self) -> None:
        """Leave no compiler behind."""
        if self.build is not None:
            self.build.stop()


def _ok(study: Study, cell: Cell, site: Site) -> Result:
    result = study.run(cell, site)
    if result.status != Status.OK:
        raise RuntimeError(f"{cell.id} ended with {result.status}: {result.reason}")
    return result


def _contention(study: Study) -> Verdict:
    """A ddp step on a shared GPU: slowed by the other replica, and by what is not overlapped."""
    network, batch, steps = ("mlp", 32, 4) if study.small else ("resnet18", 128, 30)
    ddp = Cell(
        "cifar10", network, "ddp", batch, devices_per_node=2, epochs=1, warmup_steps=5,
        max_steps=steps, data_scale=0.02 if study.small else 0.1,
    )  # fmt: skip
    site = study.site(2)
    half = ddp.with_(strategy="sequential", batch_size=batch // 2, devices_per_node=1)
    request = request_of(half, site)
    stage(request, scratch_dir(site.scratch))
    reports = run_rank_job(
        *(site, (1, 2), "gpu_parts.contention_ranks"),
        {"cell": half.to_dict(), "data": asdict(request), "budget_s": 1 if study.small else 12},
        study.work / "contention",
    )
    seconds = [report["seconds"] for report in reports]
    slowdown = float(slowdowns(seconds)[-1]["slowdown"])
    passed = study.small or slowdown >= _FEWEST_SLOWDOWN
    alone_s = statistics.median(seconds[0]["1"])
    ddp_s = median_step_s(_ok(study, ddp, site))
    return Verdict(
        passed,
        {
            "slowdown_of_two_replicas": slowdown,
            "sequential_step_s": alone_s,
            "ddp_step_s": ddp_s,
            "exposed_communication_s": ddp_s - slowdown * alone_s,
            "network": network,
            "batch_size": batch,
        },
        "" if passed else f"two replicas at once are faster than one: {slowdown:.3f}",
        rows=tuple({"rank": rank, **values} for rank, values in enumerate(seconds)),
    )


def _half(study: Study, half: str) -> Verdict:
    """The same cell in single and in half precision: the mean loss of all steps.

    The last losses are near zero, where a small difference is a large share of them.
    """
    network, batch, steps = ("mlp", 16, 8) if study.small else ("resnet18", 128, 30)
    cell = Cell(
        "cifar10", network, "sequential", batch, epochs=1, warmup_steps=1, max_steps=steps,
        data_scale=0.02 if study.small else 0.1, threads_per_device=2,
    )  # fmt: skip
    mean_loss, last_loss, step_s = {}, {}, {}
    for precision in ("fp32", half):
        variant = cell.with_(precision=precision)
        step_s[precision] = median_step_s(_ok(study, variant, study.site()))
        losses = losses_of(study.folder_of(variant))
        mean_loss[precision] = statistics.fmean(losses)
        last_loss[precision] = statistics.fmean(losses[-_LAST_LOSSES:])
    apart = abs(mean_loss[half] / mean_loss["fp32"] - 1)
    return Verdict(
        apart <= _HALF_LIMIT,
        {
            "mean_loss_deviation": apart,
            "fp32_last_loss": last_loss["fp32"],
            f"{half}_last_loss": last_loss[half],
            "step_ratio": step_s[half] / step_s["fp32"],
            "fp32_step_s": step_s["fp32"],
            "network": network,
        },
        "" if apart <= _HALF_LIMIT else f"the limit is {_HALF_LIMIT:.0%}",
    )


def _fsdp(study: Study) -> Verdict:
    """Two ranks that each keep half of the weights."""
    reports = run_rank_job(
        study.site(2), (1, 2), "gpu_parts.fsdp_ranks", {"steps": 5}, study.work / "fsdp"
    )
    apart = max(furthest(report["sharded"], report["alone"]) for report in reports)
    first = reports[0]
    return Verdict(
        apart <= _FSDP_LIMIT,
        {
            "largest_relative_deviation": apart,
            "share_of_weights": first["own_bytes"] / first["whole_bytes"],
            "transport": first["transport"],
            "last_loss": first["sharded"][-1],
        },
        "" if apart <= _FSDP_LIMIT else f"the limit is {_FSDP_LIMIT:g}",
        rows=tuple(reports),
    )


def _compile(study: Study) -> Verdict:
    """A network of ddlbench, compiled and not."""
    lacking = _why_no_compiler(study.device)
    if lacking is not None:
        raise NotHere(lacking)
    network = "mlp" if study.small else "resnet18"
    limit_s = max(min(150.0, study.left_s - 10), 1.0)
    compared = in_process(_compiled, network, study.device, limit_s=limit_s)
    apart = furthest(compared["compiled"], compared["eager"])
    return Verdict(
        apart <= _LOSS_LIMIT,
        {
            "largest_relative_deviation": apart,
            "network": network,
            "compile_s": compared["first_s"],
            "graphs": compared["graphs"],
        },
        "" if apart <= _LOSS_LIMIT else f"the limit is {_LOSS_LIMIT:g}",
        rows=(compared,),
    )


def _why_no_compiler(device: str) -> str | None:
    """What torch.compile lacks here."""
    from torch.utils._triton import has_triton_package  # noqa: PLC0415 - this check's own

    if device == "cuda" and not has_triton_package():
        return "no triton is installed, which torch.compile needs for GPUs"
    if not any(shutil.which(name) for name in ("gcc", "g++", "clang")):
        return "no C compiler is installed, which torch.compile needs"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if header.is_file() else f"no {header}, which torch.compile's code includes"


def _compiled(network: str, device: str) -> dict[str, Any]:
    """Losses of some steps, eager and compiled; in a process of its own."""
    import time  # noqa: PLC0415 - as torch: of this process alone

    import torch  # noqa: PLC0415

    from ddlbench.experiment.dataset_spec import DATASETS  # noqa: PLC0415
    from ddlbench.networks import build  # noqa: PLC0415

    graphs = 0

    def counted(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._inductor.compile(graph, inputs)

    def losses(compiled: bool) -> tuple[list[float], float]:
        built_network: Any = build(network, DATASETS["cifar10"], 0).to(device)
        called = torch.compile(built_network, backend=counted) if compiled else built_network
        optimizer = torch.optim.SGD(built_network.parameters(), lr=0.01, momentum=0.9)
        made = torch.Generator().manual_seed(0)
        losses, first_s = [], math.nan
        for _ in range(_COMPILE_STEPS):
            began = time.perf_counter()
            images = torch.randn(32, 3, 32, 32, generator=made).to(device)
            labels = torch.randint(10, (32,), generator=made).to(device)
            loss = torch.nn.functional.cross_entropy(called(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            first_s = first_s if losses[1:] else time.perf_counter() - began
        return losses, first_s

    torch.backends.cudnn.allow_tf32 = False
    eager, _ = losses(compiled=False)
    compiled, first_s = losses(compiled=True)
    return {"eager": eager, "compiled": compiled, "first_s": first_s, "graphs": graphs}


def _links(study: Study) -> Verdict:
    """One device has no link; two ranks of one GPU have sweeps, and no pairs within the node."""
    refusal = ""
    try:
        measure_links(study.site(), "default", study.work / "links-of-one" / "links.json")
    except LinksFailed as error:
        refusal = str(error)
    site = study.site(2, interconnect=Interconnect(largest_bytes=2**20, sweep_budget_s=0.3))
    links = measure_links(site, "default", study.work / "links" / "links.json")
    within = [pair for pair in links.pairs if pair.scope == "node"]
    if study.device == "cuda":
        passed = not within and any("no pairs within the node" in note for note in links.notes)
    else:  # two processes of a CPU do copy to each other
        passed = bool(within)
    return Verdict(
        passed and "there is no link" in refusal and _two_rank_operations(links) > 0,
        {
            "refusal_of_one_device": refusal,
            "pairs_within_node": len(within),
            "operations_swept": _two_rank_operations(links),
            "transports": ", ".join(sorted({sweep.transport for sweep in links.sweeps})),
            "notes": "; ".join(links.notes),
        },
    )


def _two_rank_operations(links: Links) -> int:
    return len({sweep.operation for sweep in links.sweeps if sweep.ranks == 2})


def _p2p(study: Study) -> Verdict:
    """NVIDIA's test from its source, with one GPU: matrices of one value."""
    if study.device != "cuda":
        raise NotHere("there is no GPU")
    source = None if study.carried is None else study.carried / "sources" / "cuda-samples"
    is_carried = source is not None and source.is_dir()
    interconnect = {"cuda_samples": str(source)} if is_carried else {}
    if is_carried and shutil.which("nvcc") is None:
        raise NotHere("no nvcc is in PATH")
    binary = find_or_build_p2p(interconnect)
    if binary is None:
        raise NotHere("no p2pBandwidthLatencyTest is in PATH, and no cuda-samples were carried")
    pairs = run_p2p(binary, runs=1)
    return Verdict(
        bool(pairs),
        {
            "devices": len(pairs[0]["endpoints"]) if pairs else 0,
            "matrices": len(pairs),
            "diagonal_gb_per_s": _diagonal_gb_per_s(pairs),
            "nvcc": shutil.which("nvcc"),
            "binary": str(binary),
        },
        "" if pairs else "no matrix was read",
        rows=tuple(pairs),
    )


def _diagonal_gb_per_s(pairs: list[dict[str, Any]]) -> float | None:
    """Of copies within the first GPU, in one direction."""
    for pair in pairs:
        value = pair["bandwidth_bytes_per_s"][0][0]
        if pair["direction"] == "unidirectional" and value is not None:
            return float(value) / 1e9
    return None


def _nvbandwidth(study: Study) -> Verdict:
    """NVIDIA's newer test, where somebody installed it."""
    if study.device != "cuda":
        raise NotHere("there is no GPU")
    binary = find_nvbandwidth({})
    if binary is None:
        raise NotHere("no nvbandwidth is in PATH")
    pairs = run_nvbandwidth(binary, runs=1)
    return Verdict(True, {"matrices": len(pairs), "binary": str(binary)}, rows=tuple(pairs))


def _horovod(study: Study, building: _Building) -> Verdict:
    """Two ranks of Horovod, with the losses of sequential training."""
    limit_s = min(_BUILD_LIMIT_S, study.left_s - _CELL_S)
    built_s = building.wait(limit_s)
    cell = Cell(
        "cifar10", "stack", "horovod", 48, devices_per_node=2, epochs=1, warmup_steps=1,
        max_steps=4 if study.small else 10, data_scale=0.02, cudnn_benchmark=False,
    )  # fmt: skip
    alone = cell.with_(strategy="sequential", devices_per_node=1)
    _ok(study, alone, study.site())
    result = _ok(study, cell, study.site(2))
    by_horovod, reference = (losses_of(study.folder_of(each)) for each in (cell, alone))
    apart = furthest(by_horovod, reference)
    built_with = _built_with(result)
    has_nccl = study.device == "cpu" or "nccl" in built_with
    return Verdict(
        apart <= _LOSS_LIMIT and has_nccl,
        {
            "largest_relative_deviation": apart,
            "built_with": ", ".join(built_with),
            "built": building.how,
            "build_s": built_s,
            "step_s": median_step_s(result),
        },
        "" if apart <= _LOSS_LIMIT else f"the limit is {_LOSS_LIMIT:g}",
        rows=({"horovod": by_horovod, "sequential": reference},),
    )


def _built_with(result: Result) -> list[str]:
    """The operations of this build of Horovod, as the cell's first rank found them."""
    built = result.plan_details.get("horovod_built_with") or {}
    return [name for name, is_built in sorted(built.items()) if is_built]
