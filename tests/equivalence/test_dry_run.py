"""A rehearsal comes before every message and leaves no trace."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cases import parameter_server_cells, pipedream_replay
from torch import nn
from torch.distributed import Store

import ddlbench
from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.alone import dry_run
from ddlbench.strategies.executor import executor_of
from ddlbench.testing.training import network_with_dropout

CPU = torch.device("cpu")
RUNS = ((0, 3), (3, 5))


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return network_with_dropout().double()


def train(module):
    """Weights, statistics, momentum, and all random numbers change."""
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        module(torch.randn(4, 1, 28, 28, dtype=torch.float64)).square().mean().backward()
        sgd.step()
    random.random()


def bits(module):
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return {**state, "random": torch.get_rng_state(), "python": random.getstate()}


def assert_same_bits(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal(value, second[name]) if torch.is_tensor(value) else value == second[name]
        assert same, name


def test_weights_statistics_and_random_numbers_are_as_before():
    module = network()
    before, parameters = bits(module), list(module.parameters())
    seen = []
    dry_run(module, [CPU], lambda double: (train(double), seen.append(bits(double))))
    assert_same_bits(bits(module), before)
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    assert all(parameter.grad is None for parameter in parameters)
    (trained,) = seen  # it was training
    assert not torch.equal(trained["stem.weight"], before["stem.weight"])
    assert not torch.equal(trained["norm0.running_mean"], before["norm0.running_mean"])
    assert not torch.equal(trained["random"], before["random"])


def test_also_where_it_fails():
    module = network()
    before = bits(module)

    def fail(double):
        train(double)
        raise torch.OutOfMemoryError("too large")

    with pytest.raises(torch.OutOfMemoryError):
        dry_run(module, [CPU], fail)
    assert_same_bits(bits(module), before)


# In real processes: with and without a rehearsal -------------------------------------------------


class Wires:
    """Writes down every call of torch.distributed that carries something."""

    NAMES = ("send", "recv", "isend", "irecv", "all_reduce")

    def __init__(self):
        self.log: list[tuple[str, int]] = []  # call, and the size of what it carries
        self._real = {name: getattr(dist, name) for name in self.NAMES}
        for name in self.NAMES:
            setattr(dist, name, partial(self._call, name))

    def _call(self, name, tensor, *args, **named):
        self.log.append((name, tensor.numel()))
        return self._real[name](tensor, *args, **named)

    def close(self):
        for name, call in self._real.items():
            setattr(dist, name, call)


def train_here(rehearsed: bool, cell: Cell, rank: int, store: Store | None) -> dict:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store, torch.float64)
    progress: list[int] = []
    context.progress = progress.append
    data = Reader(cell, process) if process.needs else None
    blocks = network()
    torch.manual_seed(rank)  # as the worker does
    wires = Wires()
    log = wires.log
    practised = executor.practise

    def practise(double):
        log.append(("practise", 0))
        practised(double)
        log.append(("practised", 0))

    executor.needs_dry_run = lambda: rehearsed
    executor.practise = practise
    executor.prepare(plan, process, blocks, data, context)
    prepared = len(log)
    wires.close()
    records = [executor.run(first, count) for first, count in RUNS]
    barrier(store, "done", plan.world_size)
    executor.close()
    return {
        "network": {k: v.clone() for k, v in executor.state_dict()["network"].items()},
        "optimizer": executor.state_dict()["optimizer"],
        "loss": [loss for record in records for loss in record.loss],
        "told": progress,
        "log": log[:prepared],
        "random": torch.get_rng_state(),
    }


def pipelines():
    for replicas, strategy, balance, options in (
        ("1+1+1", "pipedream", "4+3+3", {}),
        ("1+1+1", "pipedream", "4+3+3", {"vertical_sync": True}),
        ("2+1", "pipedream", "4+6", {}),
        ("2+1", "pipedream", "4+6", {"stage_all_reduce": "async"}),
        ("1+1+1", "model-parallel-p2p", "4+3+3", {}),
    ):
        yield pipedream_replay.cell_of(replicas, strategy, balance=balance, **options)


def served():
    yield parameter_server_cells.cell_of(1, 2)
    yield parameter_server_cells.cell_of(2, 1, message_bytes=parameter_server_cells.FEW_BYTES)
    yield parameter_server_cells.cell_of(2, 1, mode="async")


def between(log):
    """What a process sends and receives while it practises."""
    return log[log.index(("practise", 0)) + 1 : log.index(("practised", 0))]


@pytest.mark.parametrize("cells", [pipelines, served])
def test_training_after_a_rehearsal_is_the_same_to_the_last_bit(cells):
    wanted = list(cells())
    plain = run_ranks(partial(train_here, False), wanted, 3)
    rehearsed = run_ranks(partial(train_here, True), wanted, 3)
    for cell, ranks, again in zip(wanted, plain, rehearsed, strict=True):
        for first, second in zip(ranks, again, strict=True):
            for part in ("network", "loss", "random"):
                torch.testing.assert_close(
                    first[part], second[part], rtol=0, atol=0, msg=f"{cell.id}: {part}"
                )
            assert first["optimizer"]["param_groups"] == second["optimizer"]["param_groups"]
            momenta = [rank["optimizer"]["state"] for rank in (first, second)]
            torch.testing.assert_close(*momenta, rtol=0, atol=0, msg=cell.id)
            assert first["told"] == second["told"]  # nobody hears of a rehearsal
            assert ("practise", 0) not in first["log"]
            # Alone: only replicas add up their gradients.
            calls = {name for name, _ in between(second["log"])}
            assert calls <= {"all_reduce"}
            assert not calls or "2+1" in cell.id


def test_a_parameter_server_greets_both_ways_before_anything_is_expected():
    (cell,) = (parameter_server_cells.cell_of(1, 2),)
    (ranks,) = run_ranks(partial(train_here, True), [cell], 3)
    # With each worker one greeting on PUSH and one on PULL; then the rehearsal; then the weights.
    greetings = {"server": ["recv", "recv", "send", "send"], "worker": ["send", "recv"]}
    for rank, actual in enumerate(ranks):
        expected = greetings["server" if rank == 0 else "worker"]
        log = actual["log"]
        assert log[: len(expected) + 1] == [*((name, 1) for name in expected), ("practise", 0)]
        assert between(log) == []
        handed_out = {name for name, _ in log[log.index(("practised", 0)) + 1 :]}
        assert handed_out == ({"isend"} if rank == 0 else {"irecv"})


def test_greetings_have_one_order_so_that_no_ranks_wait_in_turn(monkeypatch):
    """Every rank's calls, played with messages that both sides wait for."""
    from ddlbench.strategies.parameter_server.server import channels_between
    from ddlbench.strategies.process_group import connect

    servers, workers = [0, 1], [2, 3, 4]
    lines: dict[int, list[tuple[str, int, int]]] = {}
    for rank in (*servers, *workers):
        calls: list[tuple[str, int, int]] = []
        lines[rank] = calls
        monkeypatch.setattr(
            dist, "send", lambda _t, to, group, c=calls, r=rank: c.append((group, r, to))
        )
        monkeypatch.setattr(
            dist, "recv", lambda _t, source, group, c=calls, r=rank: c.append((group, source, r))
        )
        channels = channels_between(servers, workers)
        connect(channels, rank, {"push": "push", "pull": "pull"}, CPU)
    met = []
    while any(lines.values()):
        heads = [line[0] for line in lines.values() if line]
        both = next((head for head in heads if heads.count(head) == 2), None)
        assert both is not None, f"all wait: {heads}"
        met.append(both)
        for line in lines.values():
            if line and line[0] == both:
                line.pop(0)
    assert len(set(met)) == len(met) == 2 * len(servers) * len(workers)


def test_first_connections_are_made_in_one_module():
    """No strategy sends a greeting, or starts Horovod's server, in a way of its own."""
    source = Path(ddlbench.__file__).parent
    greet, serve = re.compile(r"dist\.(send|recv)\("), re.compile(r"RendezvousHTTPServer\(")
    texts = {
        path.relative_to(source).as_posix(): path.read_text("utf-8")
        for path in source.rglob("*.py")
        if not path.is_relative_to(source / "interconnect")  # it measures what a message takes
    }
    greeters = {path for path, text in texts.items() if greet.search(text)}
    assert greeters == {"strategies/process_group.py"}
    servers = {path for path, text in texts.items() if serve.search(text)}
    assert servers == {"strategies/horovod/executor.py"}
