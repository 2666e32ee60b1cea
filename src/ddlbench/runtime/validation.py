"""Validation: after an epoch rank 0 classifies the validation split with the whole network.

::

    rank 0   ... epoch 1 | stop counting | own weights | ask, receive | classify | count | epoch 2
    rank 1   ... epoch 1 | stop counting | own weights | send --------- wait --- | count | epoch 2

One way serves all strategies. Every rank has its executor's ``state_dict``: the weights that it
holds now, under the names of the plain network. Rank 0 takes what it holds itself, and each other
tensor from the lowest rank that holds it, through the rendezvous store. Then it builds the network
anew, loads these tensors and runs it in ``eval`` mode, while the others wait.

So data-parallel strategies are validated with rank 0's replica and its own batch-norm statistics,
PipeDream with the newest weights of every stage and each stage's first replica, and the parameter
server with the weights that its first worker holds. FSDP and the splits of weights gather whole
weights on every rank first.

The training state, random numbers and the clock of steps are as before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddlbench.datasets.loader import ImageDataset, normalise
from ddlbench.runtime.meters import restart_peaks
from ddlbench.runtime.rank_report import Score
from ddlbench.runtime.rendezvous import TcpTraffic, barrier
from ddlbench.strategies.executor import Executor, Unsupported

_CHUNK_BYTES = 4 << 20  # the store refuses messages of more than 8 MiB


class Validator:
    """One rank's part in validations.

    Args:
        build: makes the plain network on the CPU; called by rank 0 only.
        dataset: the validation split; read by rank 0 only.
        devices: of this process; rank 0 classifies on the first.
        batch: images that are classified at a time.
        alive: called by rank 0 after each batch, as a sign of life.

    Attributes:
        peaks: of each CUDA device, the largest peak in bytes of measured steps before a validation.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        dataset: ImageDataset,
        *,
        rank: int,
        world_size: int,
        store: torch.distributed.Store | None,
        devices: Sequence[torch.device],
        batch: int,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.peaks: list[int] = []
        self._build, self._dataset = build, dataset
        self._rank, self._world_size, self._store = rank, world_size, store
        self._devices, self._batch, self._alive = devices, batch, alive

    def score(
        self, executor: Executor, steps: int, traffic: TcpTraffic | None
    ) -> tuple[Score, ...]:
        """Validate after ``steps`` measured steps; rank 0 has a score. Its traffic is not counted.

        Raises:
            Unsupported: the executor does not give its weights, or some are on no rank.
        """
        if traffic is not None:
            traffic.stop(steps)
        peaks = restart_peaks(self._devices)
        self.peaks = [max(pair) for pair in zip(peaks, self.peaks or peaks, strict=True)]
        self._wait(f"stopped {steps}")  # from here on, no rank counts
        scores = self._score(executor, steps)
        self._wait(f"validated {steps}")
        restart_peaks(self._devices)
        if traffic is not None:
            traffic.start(steps)
        self._wait(f"started {steps}")  # before that, no rank sends bytes that count
        return scores

    def _score(self, executor: Executor, steps: int) -> tuple[Score, ...]:
        if not hasattr(executor, "state_dict"):
            raise Unsupported(
                f"{type(executor).__name__} has no state_dict, so it cannot be validated; "
                "set validate to false",
                code="no_validation",
            )
        state: dict[str, Tensor] = executor.state_dict()["network"]
        if self._rank != 0:
            assert self._store is not None
            send_parts(state, self._store, self._rank, f"validation/{steps}")
            return ()
        network, device = self._build(), self._devices[0]
        fill(network, state, f"validation/{steps}", self._store, self._world_size)
        network.to(device)
        correct, loss, labels = classify(network, self._dataset, device, self._batch, self._alive)
        return (Score(steps, labels, correct, loss),)

    def _wait(self, moment: str) -> None:
        barrier(self._store, moment, self._world_size)


def send_parts(
    parts: Mapping[str, Tensor], store: torch.distributed.Store, rank: int, key: str
) -> None:
    """Name the tensors that this rank holds, and send those that rank 0 asks for."""
    store.set(f"{key}/{rank}/names", json.dumps(list(parts)))
    for name in json.loads(store.get(f"{key}/{rank}/wanted")):
        content = parts[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for begin in range(0, len(content), _CHUNK_BYTES):
            part: Any = content[begin : begin + _CHUNK_BYTES].tobytes()  # torch's stubs want texts
            store.set(f"{key}/{rank}/{name}/{begin}", part)


def fill(
    network: nn.Module,
    parts: Mapping[str, Tensor],
    key: str,
    store: torch.distributed.Store | None = None,
    world_size: int = 1,
) -> None:
    """Overwrite all weights and statistics of a network with the trained ones.

    Args:
        network: on the CPU.
        parts: the tensors that rank 0 holds, by the network's names; other names are ignored.
        key: begins the keys in the store, the same on all ranks.
        store: through which the other ranks send; None for a single rank.
        world_size: number of ranks.

    Raises:
        Unsupported: no rank holds some tensor.
    """
    whole = network.state_dict()  # views of the network's own tensors
    missing = [name for name in whole if name not in parts]
    for name in whole.keys() & parts.keys():
        whole[name].copy_(parts[name])
    for rank in range(1, world_size):
        assert store is not None
        there = set(json.loads(store.get(f"{key}/{rank}/names")))
        wanted = [name for name in missing if name in there]
        missing = [name for name in missing if name not in there]
        store.set(f"{key}/{rank}/wanted", json.dumps(wanted))
        for name in wanted:
            whole[name].copy_(_received(whole[name], store, f"{key}/{rank}/{name}"))
    if missing:
        raise Unsupported(
            f"no rank gives the weights {', '.join(missing[:3])}, so the network cannot be "
            "validated; set validate to false",
            code="no_validation",
        )


def _received(like: Tensor, store: torch.distributed.Store, key: str) -> Tensor:
    """A tensor of another rank, of the form of ``like``."""
    content = bytearray()
    while len(content) < like.nbytes:
        part = f"{key}/{len(content)}"
        content += store.get(part)
        store.delete_key(part)
    if not content:
        return torch.empty_like(like)
    return torch.frombuffer(content, dtype=like.dtype).view(like.shape)


@torch.no_grad()
def classify(
    network: nn.Module,
    dataset: ImageDataset,
    device: torch.device,
    batch: int,
    alive: Callable[[], None] = lambda: None,
) -> tuple[int, float | None, int]:
    """The number of labels that have the highest output, the mean loss, and the number of labels.

    An image has one label, a sequence of tokens one at each position. A loss that is NaN or
    infinite is None.

    Args:
        network: (N, ...) -> (N, classes) or (N, T, classes), on ``device``; left in ``eval`` mode.
        dataset: all of it is read, in order.
        device: of the network.
        batch: images at a time.
        alive: called after each batch.
    """
    network.eval()
    correct, loss, count = 0, 0.0, 0
    for first in range(0, len(dataset), batch):
        images, labels = dataset.gather(np.arange(first, min(first + batch, len(dataset))))
        outputs = network(normalise(images.to(device))).float().flatten(0, -2)
        labels = labels.to(device).flatten()
        count += len(labels)
        correct += int((outputs.argmax(dim=1) == labels).sum())
        loss += float(nn.functional.cross_entropy(outputs, labels, reduction="sum"))
        alive()
    mean = loss / count
    return correct, mean if math.isfinite(mean) else None, count
