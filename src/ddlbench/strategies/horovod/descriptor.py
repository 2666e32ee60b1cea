"""Horovod: ring all-reduce with tensor fusion (Sergeev and Del Balso 2018).

::

    cycle     |....|....|....|....|      in every cycle the ranks agree on ready gradients,
    ready      a b   c      d            fuse them up to the threshold, and all-reduce them
    all-reduce      |ab |c |   |d |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Natural, Positive
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.accumulation import Accumulating, AccumulatingOptions
from ddlbench.planning.data_parallel import DataParallel
from ddlbench.planning.network_tables import COMPLEX_AS_REAL, NetworkTraits, first_unsupported
from ddlbench.planning.plan import Options, Tried
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.step import GradientMessage
from ddlbench.planning.strategy import PARADL

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class HorovodOptions(AccumulatingOptions, RecomputingOptions):
    """Options of Horovod, with the defaults of Horovod 0.28.

    DDLBench ran 0.19 and 0.20, whose defaults were 64 MiB and 5 ms.
    """

    fusion_threshold_bytes: Annotated[Natural, Tried(2**20, 8 * 2**20, 32 * 2**20)] = 134_217_728
    """Gradients are fused up to so many bytes; 0 turns fusion off."""
    cycle_time_s: Annotated[Positive, Tried(0.005, 0.02)] = 0.001
    """Time between two rounds of negotiation, in seconds."""
    autotune: bool = False
    """Horovod tries buffers and cycles while it trains, but what of the two options above is not
    the default stays; autotune.csv has what it tried."""

    def fusion_cap(self, shrunk: Callable[[int], int]) -> int:
        """Bytes of the fusion buffer, divided as the gradients are by ``shrunk``; 0: no fusion."""
        return shrunk(int(self.fusion_threshold_bytes))


_THESIS = ("thesis-5.1-p2p", "thesis-5.1-transport")


class Horovod(Accumulating, DataParallel):
    """Real Horovod, started without ssh, mpirun or horovodrun; see HorovodOptions for defaults."""

    name: ClassVar[str] = "horovod"
    label: ClassVar[str] = "Horovod"
    colour: ClassVar[str] = "#0072B2"
    marker: ClassVar[str] = "s"
    executor: ClassVar[str] = "ddlbench.strategies.horovod.executor:HorovodExecutor"
    scales_loss: ClassVar[bool] = True
    not_compiled: ClassVar[str] = ""
    predictors = ("ddlbench-eq1", *_THESIS, "horovod-serial", *PARADL)
    preferred_predictor: ClassVar[Mapping[str, str]] = {
        "cpu": "horovod-serial",
        "cuda": "thesis-5.1-transport",
    }
    recommended_by: ClassVar[Mapping[str, str]] = {
        "thesis": "thesis-5.1-p2p",
        "ddlbench-2020": "ddlbench-eq1",
    }
    requires: ClassVar[tuple[str, ...]] = ("horovod",)
    options: ClassVar[type[Options]] = HorovodOptions

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """Horovod 0.28 sends contiguous real numbers, without torch's group of ranks."""
        return first_unsupported(
            "Horovod",
            (traits.strided, "takes contiguous weights only", "remove .to(memory_format=...)"),
            (traits.complex, "sends real numbers only", COMPLEX_AS_REAL),
            (traits.bfloat16, "sends no bfloat16", "keep weights in float32"),
            (traits.irregular, "has momentum move weights that a step does not use", "use ddp"),
            (traits.synchronised, "has no group of ranks for SyncBatchNorm", "use ddp"),
        )

    def remarks(self, cell: Cell, details: Mapping[str, Any]) -> tuple[str, ...]:
        """That Horovod was still trying in the measured steps, or never began."""
        tried = details.get("autotune_samples")
        if not isinstance(tried, Mapping):
            return ()
        before, during = int(tried["before"]), int(tried["measured"])
        if before + during == 0:
            return (
                "Horovod's autotuner tried nothing: it drops its first samples, each of dozens of "
                "steps; raise warmup_steps",
            )
        if during == 0:
            return ()
        return (
            f"Horovod's autotuner tried {counted(during, 'setting')} in the measured steps, after "
            f"{before} in warm-up: steps have different buffers and cycles (see "
            f"{details['autotune_log']}); raise warmup_steps to measure what it chose",
        )

    def gradient_messages(self, workload: Workload, plan: Plan) -> list[GradientMessage]:
        """A message a tensor; those that wait are fused, whole, up to the buffer.

        Without fusion none is taken to leave before the backward pass has ended.

        Raises:
            ConfigError: Horovod tunes itself.
        """
        if HorovodOptions.of(plan).autotune:
            raise ConfigError("Horovod's autotuner chooses its buffer only while it trains")
        fuses = self.fusion_bytes(workload, plan) is not None
        return [
            GradientMessage(tensor.bytes, tensor.ready_fraction if fuses else 1.0)
            for tensor in workload.tensors
        ]

    def fusion_bytes(self, workload: Workload, plan: Plan) -> int | None:
        return HorovodOptions.of(plan).fusion_cap(workload.shrunk) or None

    def transport(self, device_kind: str) -> str:
        return "horovod"  # with its cycle and its copies

    def communication_bytes(self, workload: Workload, plan: Plan) -> int:
        return min(self.fusion_bytes(workload, plan) or 0, workload.parameter_bytes)
