"""The predictor ``ddlbench``: one answer for every strategy, from what the site measured.

What a step consists of says the strategy's descriptor:

* gradients that all ranks sum: :class:`_Backward` replays the backward pass with its messages;
* stages: the schedule is replayed (:mod:`ddlbench.predict.predictors.pipeline_replay`), with block
  times whose sum is that of whole steps;
* pairs of linear layers that groups split: their all-reduces behind the work of one device
  (:mod:`ddlbench.predict.predictors.linear_pairs`);
* layers that devices compute together: one device measured alone, and its messages
  (:mod:`ddlbench.predict.predictors.split_layers`);
* anything else: the model that the descriptor prefers on such devices; where that hides nothing and
  has a counterpart that hides all it can, as much is hidden as the site's overlap allows.

A backward pass with messages (DDP; Horovod has no copies of its own)::

    compute      |--B3--|c|--B2--|c|------B1------|c|           |c'|  copies in, and out at the end
    all-reduce            |--- m0 ---|--- m1 ---|     |-- m2 --|
                                                       exposed

    T = k q t(B/W) + copies + stolen + what ends after the backward pass + what follows the update

* t(B/W): a sequential step of a rank's share of the mini-batch.
* k: slow-down of silent replicas of a node, at least 1: replicas do not make each other faster.
* q: slow-down of computation beside the idle library; Horovod's thread runs in every cycle.
* Copies: what DDP's own sweep takes longer than a bare all-reduce of as many bytes, over the
  devices of one node. Half before, half after.
* Stolen: a message delays the computation beside it by its processor time, as far as both need the
  same core (``cpu_s`` and ``overlaps`` of links.json): on a core that computes and sends all of it,
  on an accelerator next to nothing. Time on the wire is hidden.
* A message waits until gloo's threads get a core that computes (``delays`` of links.json, on CPUs).

What follows the update are weights that a worker alone has updated and now sends to all others
(:mod:`ddlbench.predict.predictors.worker_step`).

Horovod's messages form while it sends: each takes all gradients that are ready by then, whole, up
to the fusion threshold (Sergeev and Del Balso 2018, section 4).

No paper has this model. Its parts: the bucket timeline of Li et al. 2020, section 3.2, and the
slow-down of computation beside communication that simulators of GPUs have (Proteus, Echo).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddlbench.planning.gradient_traffic import GradientMessage, GradientTraffic
from ddlbench.planning.workload import Workload
from ddlbench.predict.collectives import ALL_REDUCE, Contention
from ddlbench.predict.links import LinkTable
from ddlbench.predict.prediction import (
    DEFAULT_PREDICTOR,
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    Predictor,
    joined,
    predictor_of,
)
from ddlbench.predict.predictors.pipeline_replay import replayed
from ddlbench.predict.predictors.worker_step import gather_s, worker_step

_LIMITS = ("no straggling worker",)


class Ddlbench(BuiltInPredictor):
    """What the site measured, put together as the strategy's descriptor says."""

    name = DEFAULT_PREDICTOR
    source = "replay of what the strategy does, with measured parts"
    strategies = None

    def model(self, inputs: CellInputs) -> Prediction:
        strategy, plan = inputs.strategy, inputs.plan
        if plan.world_size > 1 and strategy.gradient_traffic(inputs.workload, plan) is not None:
            return _data_parallel(inputs)
        if strategy.pipeline_run(plan) is not None:
            return replayed(inputs, level=True)
        if strategy.tensor_traffic(inputs.workload, plan) is not None:
            return replace(_preferred(inputs, "linear-pairs"), predictor=DEFAULT_PREDICTOR)
        preferred = strategy.preferred_on(inputs.workload.compute_kind)
        work = strategy.device_work(inputs.cell)
        if work is not None and (preferred is None or work in inputs.workload.alone):
            preferred = "split-layers"
        if preferred in (None, DEFAULT_PREDICTOR):
            raise NotPredictable(
                f"{DEFAULT_PREDICTOR} has no model of {strategy.name} on "
                f"{inputs.workload.compute_kind} devices: its descriptor states none of "
                "gradient_traffic, pipeline_run, tensor_traffic and device_work"
            )
        return replace(_preferred(inputs, str(preferred)), predictor=DEFAULT_PREDICTOR)


def _preferred(inputs: CellInputs, name: str) -> Prediction:
    """What a model says; where it hides nothing, with as much hidden as the site's links allow.

    ::

        exposed = all hidden + (1 - hidden share) * handled share * (nothing hidden - all hidden)
    """

    def said_by(model: Predictor) -> Prediction:
        return model.predict(
            inputs.workload, inputs.measured_links, inputs.plan, inputs.cell, inputs.history
        )

    model = predictor_of(name)
    found = said_by(model)
    if not isinstance(model, BuiltInPredictor) or model.overlapped is None:
        return found
    cell = inputs.cell
    exposed = inputs.links.contention(cell.nodes, cell.devices_per_node, None).exposed_share
    hidden = said_by(predictor_of(model.overlapped))
    longer_s = found.exposed_communication_s - hidden.exposed_communication_s
    longer_s *= model.handled_share(inputs)
    exposed_s = hidden.exposed_communication_s + exposed * max(0.0, longer_s)
    return replace(
        found, exposed_communication_s=min(exposed_s, found.communication_s), interval_s=None
    )


@dataclass(frozen=True)
class _Sum:
    """One message: gradients that are summed over all ranks.

    Args:
        ready_fraction: share of the backward pass after which its last gradient is ready.
        carried_s: from the first byte to the last.
        stolen_s: by which it delays computation beside all of it.
        copied_s: copies around it, by the thread that computes.
    """

    ready_fraction: float
    carried_s: float
    stolen_s: float
    copied_s: float = 0.0


@dataclass
class _Backward:
    """A backward pass during which messages leave.

    Args:
        undisturbed_s: without messages.
    """

    undisturbed_s: float
    delay_s: float = 0.0  # of computation so far
    sent_s: float = 0.0  # end of the last message
    after_s: float = 0.0  # copies once all messages are there

    def ready_s(self, fraction: float) -> float:
        """When gradients are ready that an undisturbed pass has after ``fraction`` of its time."""
        return fraction * self.undisturbed_s + self.delay_s

    def send(self, message: _Sum) -> None:
        """Send a message once its gradients are ready and the one before it has ended."""
        self.delay_s += message.copied_s / 2
        self.after_s += message.copied_s / 2
        begin = max(self.ready_s(message.ready_fraction), self.sent_s)
        self.sent_s = begin + message.carried_s
        beside_s = max(0.0, min(message.carried_s, self.undisturbed_s + self.delay_s - begin))
        if message.carried_s:
            self.delay_s += message.stolen_s * beside_s / message.carried_s

    @property
    def exposed_s(self) -> float:
        """What the messages add to the undisturbed pass."""
        end_s = max(self.undisturbed_s + self.delay_s, self.sent_s) + self.after_s
        return end_s - self.undisturbed_s


def _data_parallel(inputs: CellInputs) -> Prediction:
    cell, workload, links = inputs.cell, inputs.workload, inputs.links
    own = worker_step(inputs)
    traffic = inputs.gradient_traffic
    slowdown = max(1.0, workload.slowdown(cell.devices_per_node))
    if traffic.transport:
        slowdown *= links.slow_down_beside(traffic.transport, cell.nodes, cell.devices_per_node)
    times = _MessageTimes.of(links, inputs, traffic)
    backward = _Backward(slowdown * own.step.backward_s)
    carried_s = 0.0
    for message in _messages(backward, workload, traffic, times):
        backward.send(message)
        carried_s += message.carried_s + message.copied_s
    # Hiding never makes a step longer than sending everything once the gradients are there.
    exposed_s = min(backward.exposed_s, _unhidden_s(workload, traffic, times))
    after_s, remarks = gather_s(inputs)
    return Prediction(
        DEFAULT_PREDICTOR,
        compute_s=slowdown * own.step_s,
        communication_s=carried_s + after_s,
        exposed_communication_s=exposed_s + after_s,
        limits=_LIMITS,
        notes=joined(own.step.remark, times.remarks, remarks),
        interval_s=own.interval(slowdown, exposed_s + after_s),
    )


def _unhidden_s(workload: Workload, traffic: GradientTraffic, times: _MessageTimes) -> float:
    """Seconds of all messages, if none of them leaves before the backward pass has ended."""
    messages = _messages(_Backward(0.0), workload, traffic, times)
    return sum(message.carried_s + message.copied_s for message in messages)


@dataclass(frozen=True)
class _MessageTimes:
    """Seconds of a message by its bytes: on its way, and in copies around it.

    ``delay_s`` is what it waits for a core that computes.
    """

    carried_s: Callable[[float], float]
    copied_s: Callable[[float], float]
    contention: Contention
    remarks: tuple[str, ...]
    delay_s: float = 0.0

    @classmethod
    def of(cls, links: LinkTable, inputs: CellInputs, traffic: GradientTraffic) -> _MessageTimes:
        """From the sweeps of the strategy's transport, and of the library around it if swept."""
        shape = (inputs.cell.nodes, inputs.cell.devices_per_node)
        bare = links.all_reduce(*shape, traffic.transport)
        contention = links.contention(*shape, traffic.transport)
        delay_s = links.delay_s(ALL_REDUCE, traffic.transport, *shape)
        library = traffic.library
        if library is None or not links.sweeps_of(library):
            lack = f"copies of {library} were not measured; measure the links again"
            remarks = joined(bare.notes, contention.notes, lack if library else None)
            return cls(bare.time_s, lambda _size: 0.0, contention, remarks, delay_s)
        # Copies are a node's own matter, and its links are swept up to longer messages.
        inside = shape[1] > 1 and links.has_swept(library, 1)
        beside = (1, shape[1]) if inside else shape
        whole, inner = (links.all_reduce(*beside, name) for name in (library, traffic.transport))
        return cls(
            bare.time_s,
            lambda size: max(0.0, whole.time_s(size) - inner.time_s(size)),
            contention,
            joined(bare.notes, contention.notes, whole.notes),
            delay_s,
        )

    def sum_of(self, message: GradientMessage) -> _Sum:
        size, carried_s = message.bytes, self.carried_s(message.bytes)
        stolen_s = self.contention.stolen_s(size, carried_s)
        begun_s = self.delay_s + carried_s
        return _Sum(message.ready_fraction, begun_s, stolen_s, self.copied_s(size))


def _messages(
    backward: _Backward, workload: Workload, traffic: GradientTraffic, times: _MessageTimes
) -> Iterator[_Sum]:
    """The messages of a step in order; those of Horovod form while earlier ones are sent."""
    if traffic.fusion_bytes is None:
        yield from map(times.sum_of, traffic.messages)
        return
    waiting: Sequence[GradientMessage] = [
        GradientMessage(tensor.bytes, tensor.ready_fraction) for tensor in workload.tensors
    ]
    while waiting:
        begin = max(backward.sent_s, backward.ready_s(waiting[0].ready_fraction))
        ready = [m for m in waiting if backward.ready_s(m.ready_fraction) <= begin]
        fused = _whole(ready, traffic.fusion_bytes)
        size = sum(message.bytes for message in fused)
        yield times.sum_of(GradientMessage(size, fused[-1].ready_fraction))
        waiting = waiting[len(fused) :]


def _whole(messages: Sequence[GradientMessage], most_bytes: int) -> Sequence[GradientMessage]:
    """The first messages that fit together; a tensor is never cut, so the first always fits."""
    filled = 0
    for index, message in enumerate(messages):
        filled += message.bytes
        if index and filled > most_bytes:
            return messages[:index]
    return messages
