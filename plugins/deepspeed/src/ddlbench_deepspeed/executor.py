"""Executor of real DeepSpeed, over gloo (CPU) or NCCL (CUDA), without its launcher.

::

    | forward | backward, and the sums of gradients | update, and the weights for all |
      engine()  engine.backward()                     engine.step()

The engine gets torch's optimiser, so all stages train what plain training trains. A rank's own
state, which checkpoints hold, lies in one row for each group of weights::

    stages 1, 2   whole weights | copy of a 1/W part | optimiser's states of that part
    stage 3       1/W of each weight | copy of them  | states of them
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ddlbench.experiment.site import Accelerator
from ddlbench.planning.plan import Plan
from ddlbench.strategies.executor import Executor, Unsupported
from ddlbench.strategies.process_group import join_all
from ddlbench.strategies.training import make_optimizer
from ddlbench_deepspeed.compiled import compile_operation
from ddlbench_deepspeed.descriptor import DeepSpeed, DeepSpeedOptions

_FLOAT_BYTES = 4


class DeepSpeedExecutor(Executor):
    """One process a device, and a DeepSpeed engine around the network.

    Batch-norm statistics stay each process's own, as with DDP.
    """

    def place(self, network: nn.Sequential) -> nn.Module:
        device = self.context.devices[0]
        deepspeed = _imported(device)
        if device.type == "cpu":
            builders = importlib.import_module("deepspeed.ops.op_builder.cpu")
            compile_operation(builders.ShareMemCommBuilder())
        _set_place(self)
        join_all(self.context, self.process, self.plan.world_size)
        network.to(device)
        weights = sum(p.numel() for p in network.parameters() if p.requires_grad)
        self.inner = make_optimizer(self.plan.cell, network.parameters())
        self.engine, *_ = deepspeed.initialize(
            model=network,
            optimizer=self.inner,
            config=configuration(self.plan, weights),
            dist_init_required=False,
        )
        self.gathered = deepspeed.zero.GatheredParameters
        assert isinstance(self.engine, nn.Module)
        return self.engine

    @property
    def _stage(self) -> int:
        return DeepSpeedOptions.of(self.plan).stage

    def make_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of this rank's part, whose parameters DeepSpeed has replaced."""
        return self.inner

    def zero_grad(self) -> None:
        """Nothing: the engine drops gradients in its own step."""

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def update(self) -> None:
        self.spans.phase("update")
        self.engine.step()

    @property
    def network(self) -> nn.Module:
        """The network within the engine."""
        return self.engine.module

    def state_dict(self) -> dict[str, Any]:
        """Whole weights; a collective in stage 3, which all processes call."""
        shared = [p for p in self.network.parameters() if hasattr(p, "ds_tensor")]
        with self.gathered(shared, enabled=bool(shared)):
            network = {name: value.clone() for name, value in self.network.state_dict().items()}
        return {"network": network, "optimizer": self._states()}

    def checkpoint_state(self) -> dict[str, Any]:
        """What this rank keeps; no message."""
        module = {name: value.detach() for name, value in self._kept_tensors().items()}
        return {"module": module, "states": self._states()}

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        kept = self._kept_tensors()
        if kept.keys() != state["module"].keys():
            raise ValueError("the checkpoint is of another network or stage")
        with torch.no_grad():
            for name, value in kept.items():
                value.copy_(state["module"][name])
        self.inner.state.clear()
        for name, owner in self._owners().items():
            if kept_states := state["states"].get(name):
                self.inner.state[owner] = {
                    # torch keeps an optimiser's count of steps on the CPU.
                    key: value.clone() if key == "step" else value.to(owner.device, copy=True)
                    for key, value in kept_states.items()
                }

    def _kept_tensors(self) -> dict[str, Tensor]:
        """This rank's weights, statistics and copies that it updates, by name."""
        parameters = dict(self.network.named_parameters(remove_duplicate=False))
        kept = {
            name: getattr(parameters.get(name), "ds_tensor", value)
            for name, value in self.network.state_dict().items()
        }
        if self._stage > 0:
            kept.update(self._owners())
        return kept

    def _owners(self) -> dict[str, Tensor]:
        """What this rank's optimiser updates: parameters in stage 0, else its copies of weights."""
        if self._stage == 0:
            return dict(self.network.named_parameters())
        name = (
            "fp32_partitioned_groups_flat"
            if self._stage == 3
            else "single_partition_of_fp32_groups"
        )
        rows = getattr(self.engine.optimizer, name)
        return {f"updated row {number}": row for number, row in enumerate(rows)}

    def _states(self) -> dict[str, dict[str, Tensor]]:
        """The optimiser's states by what they are of; in stage 3 ``state_dict`` has none."""
        states = {name: self.inner.state.get(owner, {}) for name, owner in self._owners().items()}
        return {
            name: {key: value for key, value in state.items() if isinstance(value, Tensor)}
            for name, state in states.items()
        }

    def persistent_tensors(self) -> Iterator[Tensor]:
        yield from self._kept_tensors().values()
        for states in self._states().values():
            yield from states.values()

    def details(self) -> dict[str, Any]:
        release = importlib.import_module("deepspeed").__version__
        return {**super().details(), "deepspeed_release": release}

    def close(self) -> None:
        self.engine.destroy()
        super().close()


def configuration(plan: Plan, weights: int) -> dict[str, Any]:
    """DeepSpeed's configuration of a cell.

    By default DeepSpeed 0.19 clips gradients to the norm 1 without being asked, which sequential
    training does not. Stage 3 keeps no weight whole: by default DeepSpeed would not share weights
    of less than 100 000 numbers, nor free any that is needed again within the next 1e9.

    Args:
        plan: of the cell.
        weights: numbers in all trained weights; no bucket is larger, as it is allocated whole.
    """
    details = DeepSpeedOptions.of(plan)
    elements = max(1, min(Accelerator.shrunk(details.bucket_bytes) // _FLOAT_BYTES, weights))
    return {
        "train_micro_batch_size_per_gpu": plan.cell.batch_size // plan.world_size,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
        "zero_optimization": {
            "stage": details.stage,
            "reduce_bucket_size": elements,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0,
        },
    }


def _imported(device: torch.device) -> Any:
    """The package, told which device it is on, and quiet.

    Raises:
        Unsupported: it is not installed here.
    """
    os.environ["DS_ACCELERATOR"] = device.type
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise Unsupported(
            f"DeepSpeed is not installed here ({error}); {DeepSpeed.install}",
            code="package_missing",
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def _set_place(executor: DeepSpeedExecutor) -> None:
    """Set the variables by which DeepSpeed's launcher tells a process its place."""
    plan, process = executor.plan, executor.process
    device = executor.context.devices[0]
    os.environ["RANK"] = str(process.rank)
    os.environ["WORLD_SIZE"] = str(plan.world_size)
    os.environ["LOCAL_RANK"] = str(device.index or 0)
    os.environ["LOCAL_SIZE"] = str(len(plan.on_node(process.node)))
