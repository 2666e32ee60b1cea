"""Kept threads change nothing but who computes: same gradients, same errors, none left behind."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
import torchgpipe.pipeline
from torch import nn
from torchgpipe import GPipe

from ddlbench.strategies.torchgpipe.executor import KeptWorkers

CPU = torch.device("cpu")
CHUNKS = 4
ORIGINAL = torchgpipe.pipeline.spawn_workers


class Watched(nn.Module):
    """Notes the thread that it runs in, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []
        self.fails = False

    def forward(self, inputs):
        self.threads.append(threading.current_thread())
        if self.fails:
            raise RuntimeError("one block fails")
        return inputs


def pipe(checkpoint="never", watched=None):
    torch.manual_seed(0)
    blocks = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3),
        nn.Dropout(0.2),
        watched or nn.Identity(),
        nn.Flatten(),
        nn.Linear(4 * 16, 3),
    ]
    return GPipe(
        nn.Sequential(*blocks),
        balance=[2, 2, 3],
        devices=[CPU] * 3,
        chunks=CHUNKS,
        checkpoint=checkpoint,
    )


def step(module):
    inputs, labels = torch.randn(8, 1, 8, 8), torch.randint(3, (8,))
    loss = nn.functional.cross_entropy(module(inputs), labels)
    loss.backward()
    return loss.detach()


def train(module, steps=3):
    torch.manual_seed(1)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        sgd.zero_grad()
        losses.append(step(module))
        sgd.step()
    gradients = [parameter.grad.clone() for parameter in module.parameters()]
    return [*losses, *gradients, *module.state_dict().values()]


def ours():
    """Partitions' threads that are alive; other tests' executors may have left theirs."""
    return {t for t in threading.enumerate() if t.name.startswith("partition")}


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
def test_gradients_and_weights_are_the_same_to_the_last_bit(checkpoint):
    expected = train(pipe(checkpoint))
    workers = KeptWorkers()
    with workers.in_use():
        actual = train(pipe(checkpoint))
    workers.close()
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_threads_are_kept_from_step_to_step_and_none_is_left():
    before, watched, workers = ours(), Watched(), KeptWorkers()
    module = pipe(watched=watched)
    with workers.in_use():
        train(module)
        assert len(set(watched.threads)) == 1
        assert len(watched.threads) == 3 * CHUNKS
        with torch.no_grad():  # whoever computes without gradients is another thread
            module(torch.randn(8, 1, 8, 8))
        assert len(set(watched.threads)) == 2
        assert len(ours() - before) == 2
    assert torchgpipe.pipeline.spawn_workers is ORIGINAL
    workers.close()
    assert ours() == before
    workers.close()  # twice is once
    watched.threads.clear()
    train(module)  # torchgpipe's own again: new ones in every step
    assert len({id(thread) for thread in watched.threads}) == 3


def test_gradients_are_off_where_they_are_off():
    workers, module = KeptWorkers(), pipe()
    with workers.in_use():
        assert module(torch.randn(8, 1, 8, 8)).requires_grad
        with torch.no_grad():
            assert not module(torch.randn(8, 1, 8, 8)).requires_grad
        assert module(torch.randn(8, 1, 8, 8)).requires_grad
    workers.close()


def test_an_error_is_raised_as_ever_and_the_next_step_is_sound():
    before, watched, workers = ours(), Watched(), KeptWorkers()
    module = pipe(watched=watched)
    with workers.in_use():
        step(module)
        watched.fails = True
        with pytest.raises(RuntimeError, match="one block fails") as caught:
            step(module)
        # Where it was raised is seen.
        assert any(entry.name == "forward" and "fails" in str(entry.statement)
                   for entry in caught.traceback)  # fmt: skip
        assert ours() == before
        watched.fails = False
        module = pipe(watched=watched)
        actual = train(module)
    workers.close()
    assert ours() == before
    expected = train(pipe())
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_an_interrupt_in_the_middle_of_a_pass_leaves_no_thread():
    before, workers = ours(), KeptWorkers()
    with workers.in_use():
        spawned = torchgpipe.pipeline.spawn_workers([CPU, CPU])
        with pytest.raises(KeyboardInterrupt), spawned as (tasks, _results):
            assert tasks[0] is tasks[1]  # one device, one thread
            raise KeyboardInterrupt
    assert ours() == before


def test_no_activation_is_held_between_steps():
    """A thread that waits for its next task holds nothing of the last one."""
    workers, module = KeptWorkers(), pipe()
    outputs = []
    module.partitions[1].register_forward_hook(
        lambda _module, _inputs, output: outputs.append(weakref.ref(output))
    )
    with workers.in_use():
        step(module)
    assert len(outputs) == CHUNKS
    assert [output() for output in outputs] == [None] * CHUNKS
    workers.close()
