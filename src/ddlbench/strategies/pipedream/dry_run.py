"""Messages that nobody sends, for a stage's dry run alone; see ``strategies/dry_run.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from ddlbench.planning.schedules import Action
from ddlbench.strategies.pipelining.cutting import TensorForm

__all__ = ["MadeUpMessages"]


class MadeUpMessages:
    """What is received is zero, what is sent goes nowhere.

    Args:
        forms: of what arrives, "activation" and "gradient".
        device: where tensors lie.
    """

    def __init__(self, forms: dict[str, TensorForm], device: torch.device) -> None:
        self._forms, self._device = forms, device

    def open(self) -> None:
        """Nothing is posted."""

    def receive(self, action: Action) -> Tensor:
        """A tensor of the form of the message that an action waits for."""
        return self._forms[action.kind.removeprefix("receive_")].tensor(self._device).zero_()

    def send(self, action: Action, tensor: Tensor) -> None:
        """To nobody."""

    def finish(self) -> None:
        """Nothing is under way."""
