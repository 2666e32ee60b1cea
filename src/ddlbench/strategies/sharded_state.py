"""State of executors whose weights are shared out as DTensors: whole for readers, local on disk.

::

    state_dict         whole weights     a collective: every rank gets all
    checkpoint_state   this rank's part  no message; only the same plan can read it back
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ddlbench.strategies.executor import Executor


class ShardedStateExecutor(Executor):
    """Base of executors some of whose parameters are DTensors; the others are plain tensors."""

    def state_dict(self) -> dict[str, Any]:
        """Whole weights; a collective, which all processes call."""
        network = {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in self.module.state_dict().items()
        }
        return {"network": network, "optimizer": self._local_optimizer_state()}

    def checkpoint_state(self) -> dict[str, Any]:
        module = {name: local(value) for name, value in self.module.state_dict().items()}
        return {"module": module, "optimizer": self._local_optimizer_state()}

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        own = self.module.state_dict()
        if own.keys() != state["module"].keys():
            raise ValueError("the checkpoint is of another network")
        with torch.no_grad():
            for name, value in own.items():
                local(value).copy_(state["module"][name])
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        whole = {
            int(number): {
                name: _like(parameters[int(number)], value) if isinstance(value, Tensor) else value
                for name, value in entry.items()
            }
            for number, entry in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": whole})

    def _local_optimizer_state(self) -> dict[str, Any]:
        whole = self.optimizer.state_dict()
        own = {
            number: {name: local(value) for name, value in entry.items()}
            for number, entry in whole["state"].items()
        }
        return {**whole, "state": own}

    def persistent_tensors(self) -> Iterator[Tensor]:
        return map(local, super().persistent_tensors())


def local(value: Any) -> Any:
    """This rank's share of a sharded tensor; anything else as it is."""
    return value.to_local() if isinstance(value, DTensor) else value


def _like(parameter: Tensor, own: Tensor) -> Tensor:
    """A sharded tensor of the parameter's layout from this rank's share."""
    if not isinstance(parameter, DTensor):
        return own
    return DTensor.from_local(
        own,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
