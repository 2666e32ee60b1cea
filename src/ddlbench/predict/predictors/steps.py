"""Models that give a strategy's step (:mod:`ddlbench.planning.step`) its seconds; the default one.

They differ in what they hide and in which measured terms they count
(:mod:`ddlbench.predict.step_replay`)::

    model                                 messages beside computation   terms
    sharded, linear-pairs, split-layers   where the step has them       all
    ddp-all-reduce                        where the step has them       sweeps, k
    ddp-buckets                           where the step has them       Eq. 1's ring
    ddp-serial, horovod-serial,           none                          sweeps, k
      averaged-weights

No paper has these models. Their parts:
the bucket timeline of Li et al. 2020, section 3.2; the slow-down of computation beside
communication that simulators of GPUs have (Proteus, Echo); the order of FSDP's messages of Zhao et
al. 2023, section 3.3; the messages of Shoeybi et al. 2019, section 3, in groups that split pairs of
linear layers.

Parameter server: N workers push gradients of S bytes to K servers and pull weights of as many.

::

    sync     T = t_c + push + pull
             push = L + max(N S / (K BW), S / BW)       the fuller of a server's and a worker's link
             pull = the same the other way
    async    T = max( t_c + 2 L + 2 S / BW,             a worker alone on its links
                      N S / (K BW),                     the servers' links, full each way
                      N t_u )                           the servers' updates

    push, and the servers' bound:  at least c S / (K BW_n)    c pairs of a worker and a server cross
                                                              the cards BW_n of the busiest node

    t_c = t(B/N) - t_opt + t_u,  t_u = t_opt / K        servers share the optimiser's step

L is the longest latency of a hop between a worker and a server, through the training transport;
BW its bandwidth. Where hops differ, each worker counts with its own: S / BW is then the sum over a
worker's servers, and N S / (K BW) that over a server's workers. T is the time of one mini-batch; in
async mode it is the time of one update by each worker. Li et al. (OSDI 2014) describe the system
and give no equation: these are the bounds of its links. Links are assumed to carry both directions
at once, so in async mode pushes of some workers overlap pulls of others.

Two predictors:

* ``parameter-server`` is the above: the backward pass hides nothing of push and pull.
* ``parameter-server-messages`` follows our executor message by message. The K messages g of a round
  (one per server) leave when the last of their gradients is ready::

      pushed_g  = max(ready_g, pushed_{g-1}) + p        p = max(N, K) s / BW
      updated_g = max(pushed_g + L, updated_{g-1}) + t_u / rounds
      pulled_g  = max(updated_g, pulled_{g-1}) + p
      T = t_c - t_u + max(0, pulled_last + L - t_backward)

  in async mode the first bound with N = 1 in p; the other two bounds stay.

The default predictor, ``ddlbench``, has one answer for every strategy. What a step consists of says
the strategy's descriptor:

* computations and messages of a rank: they are replayed with all measured terms;
* stages: the schedule is replayed (:mod:`ddlbench.predict.predictors.pipeline_replay`), with block
  times whose sum is that of whole steps;
* anything else: the model that the descriptor prefers on such devices; where that hides nothing and
  has a counterpart that hides all it can, as much is hidden as the site's overlap allows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ddlbench.planning.step import COMPUTE, LINK, Compute, Message, Step
from ddlbench.predict.prediction import (
    DEFAULT_PREDICTOR,
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    Predictor,
    predictor_of,
)
from ddlbench.predict.predictors.pipeline_replay import replayed
from ddlbench.predict.step_replay import ALL_TERMS, Exchange, Replay, StepCosts, Terms


class OfSteps(BuiltInPredictor):
    """One worker's step, with its messages.

    Class attributes:
        terms: what is counted.
        hides: messages run beside computation where the step has them so; else they follow it.
        of: what has such steps, for messages.
    """

    terms: ClassVar[Terms] = ALL_TERMS
    hides: ClassVar[bool] = True
    of: ClassVar[str]

    def covers(self, step: Step) -> bool:
        """Whether the model is of such steps of a strategy that names it."""
        return True

    def model(self, inputs: CellInputs) -> Prediction:
        step = inputs.step
        if self.name not in inputs.strategy.predictors or not self.covers(step):
            raise NotPredictable(f"{self.name} is of {self.of}; {inputs.cell.strategy} is not")
        return predicted(inputs, step, self.terms, hides=self.hides)


def predicted(
    inputs: CellInputs, step: Step, terms: Terms = ALL_TERMS, *, hides: bool = True
) -> Prediction:
    """A step with the seconds of these terms."""
    costs = StepCosts(inputs, step, terms)
    if hides:
        replay = Replay(step, costs)
        compute_s, sent_s = replay.compute_s, replay.communication_s
        exposed_s = min(replay.exposed_s, sent_s)  # by rounding it may be longer
    else:
        compute_s = sum(costs.compute_s(task) for task in step.tasks if isinstance(task, Compute))
        # All gradients are there before the first message leaves.
        sums = [Message("all_reduce", size, LINK) for size in step.fused]
        sent_s = sum(costs.message(message).whole_s for message in (*sums, *step.others))
        exposed_s = sent_s
    steps = inputs.strategy.round_steps(inputs.cell)
    compute_s, sent_s, exposed_s = (seconds / steps for seconds in (compute_s, sent_s, exposed_s))
    return Prediction(
        inputs.predictor,
        compute_s=compute_s,
        communication_s=sent_s,
        exposed_communication_s=exposed_s,
        limits=_limits(step, terms, hides=hides),
        notes=costs.remarks,
        interval_s=costs.interval(compute_s, exposed_s),
    )


def _limits(step: Step, terms: Terms, *, hides: bool) -> tuple[str, ...]:
    limits = ["no straggling worker"]
    if not hides:
        limits.insert(0, "nothing is hidden behind computation")
    elif not terms.all or any(message.lane == LINK for message in step.others):
        limits.insert(0, "communication does not slow computation down")
    if any(message.group for message in step.messages) and step.alone is None:
        limits += [
            "a layer of fewer features takes its share of the whole layer's time",
            "what the host takes to start an operation of a split layer is not modelled",
        ]
    return tuple(limits)


class _OfGradients(OfSteps):
    of = "ranks that sum all gradients"

    def covers(self, step: Step) -> bool:
        return bool(step.gradients)


class DdpBuckets(_OfGradients):
    """DDP with the terms of Eq. 1 and no others: a ring over the slowest hop, k = 1.

    So it compares with Horovod's predictors on equal terms. Buckets leave while backward runs::

        backward    |---------------------------|
        ready_k         |      |       |        |          when the bucket's last gradient is ready
        all-reduce      |-b0-| |--b1--||--b2---||-b3-|     one after the other
                                                |----|     exposed

        start_k = max(ready_k, end_{k-1});  end_k = start_k + t(S_k)
        T = k t_seq(B/W) + max(0, end_last - k t_backward)
    """

    name = "ddp-buckets"
    source = "DDLBench, Eq. 1, a bucket at a time"
    terms = Terms(ring=True, all=False)


class DdpAllReduce(_OfGradients):
    """The same with the fitted sweep of the all-reduce, k the slow-down of silent replicas."""

    name = "ddp-all-reduce"
    source = "measured all-reduce, a bucket at a time"
    terms = Terms(all=False)


class _Serial(OfSteps):
    """Nothing is hidden: compute, then the measured sweep of every message.

    ::

        |------ k t(B/W) ------|-- t(S_1) --|-- t(S_2) --|        T = k t(B/W) + sum_i t(S_i)

    It describes a device with a single core that computes and sends. On GPUs it is an upper bound.
    """

    terms = Terms(all=False)
    hides = False


class DdpSerial(_Serial, _OfGradients):
    """DDP's buckets, through torch.distributed."""

    name = "ddp-serial"
    source = "measured all-reduce of every bucket, nothing hidden"


class HorovodSerial(_Serial, _OfGradients):
    """Horovod's fusion buffers, with its cycle and its copies."""

    name = "horovod-serial"
    source = "measured all-reduce of Horovod, nothing hidden"


class AveragedWeights(_Serial):
    """Ranks that train alone and average all weights once in H steps: the mean step of a round.

    ::

        | k t(B/W) | k t(B/W) | .. | k t(B/W) |-- t(S_1) --|-- t(S_2) --|      a round of H steps

    The S_i are all weights in buckets. The outer optimiser's update is not modelled.
    """

    name = "averaged-weights"
    source = "measured all-reduce of all weights, once a round"
    of = "ranks that average all weights"


class Sharded(OfSteps):
    """Ranks that share the weights: the measured all-gather and reduce-scatter of every block.

    ::

        on CPUs     |-g1-| F1 |-g2-| F2 |-g3-| F3 | B3 |-r3-|-g2-| B2 |-r2-|-g1-| B1 |-r1-| update

        on GPUs     compute     | F1 | F2 | F3 | B3 | B2   | B1   |          one block ahead,
                    link   |-g1-|-g2-|-g3-|    |-g2-|-r3-|-g1-|-r2-|-r1-|    on one link

    Messages are FSDP's own where these were swept, with copies and the cost of each tensor.
    """

    name = "sharded"
    source = "measured collectives of every block, replayed"
    of = "ranks that share the weights"

    def covers(self, step: Step) -> bool:
        return any(message.operation == "reduce_scatter" for message in step.messages)


class LinearPairs(OfSteps):
    """Groups of devices that split pairs of linear layers: measured all-reduces of every pair.

    ::

        group 0    | F | g | F | g | .. | B | f | B | f | .. | sum over groups | update |
        group 1    | F | g | F | g | .. | B | f | B | f | .. |                 | update |

        T = k (load(b) + s passes(b) + u update) + sum of T_AR,p(activations) + sum of T_AR,d(gradients)

    p devices in each of d groups, b samples a group; s is the share of the passes that a device
    computes, u that of the weights that it updates.
    """  # noqa: E501 - the equation

    name = "linear-pairs"
    source = "measured all-reduces of every pair of linear layers"
    of = "pairs of linear layers"


class SplitLayers(OfSteps):
    """Devices that compute each layer together: one of them measured alone, and its messages.

    ::

        measured alone   | part of layer 1 | part of layer 2 | .. | update |
        a step           | part of layer 1 |-- messages --| part of layer 2 |-- messages --| ..

        T = k s + sum over messages of (d + T(bytes))

    s is a step of one device without its peers, with data loading and update (``alone`` of
    profile.json). ParaDL (Kahira et al. 2021, Table III) instead takes a part of a layer to be as
    efficient as the whole.
    """

    name = "split-layers"
    source = "one device measured alone, and its measured messages"
    of = "devices that compute each layer together"


_OWN_LINKS = "each device has a link of its own; those of one node do not share one"


class ParameterServerMessages(BuiltInPredictor):
    """Message by message, while backward runs."""

    name = "parameter-server-messages"
    source = "our executor, a message at a time"
    hides: ClassVar[bool] = True

    def model(self, inputs: CellInputs) -> Prediction:
        step = inputs.step
        costs = StepCosts(inputs, step, ALL_TERMS)
        exchange, one_way_s = costs.exchange, costs.one_way_s
        seconds = {"server": 0.0, COMPUTE: 0.0}
        for task in step.tasks:
            if isinstance(task, Compute):
                seconds[task.lane] += costs.compute_s(task)
        update_s, compute_s = seconds["server"], seconds[COMPUTE]
        sent_s = 2 * (costs.latencies_s + one_way_s)
        waited_s = Replay(step, costs).exposed_s if self.hides else sent_s + update_s
        if not inputs.strategy.is_synchronous(inputs.cell):
            served_s = exchange.latencies_s(exchange.workers) + exchange.all_s
            bound_s = max(served_s, exchange.workers * update_s)
            waited_s = max(waited_s, bound_s - compute_s)
        # Updates count as compute. Waiting for links or for a bound counts as communication.
        updates_s = min(waited_s, update_s)
        exposed_s = waited_s - updates_s
        return Prediction(
            self.name,
            compute_s=compute_s + updates_s,
            communication_s=max(sent_s, exposed_s),
            exposed_communication_s=exposed_s,
            limits=(
                "the sum of the workers' gradients costs a server nothing",
                *(() if exchange.node_s else (_OWN_LINKS,)),
                "replicas do not slow each other down, no straggling worker",
            ),
            notes=costs.remarks,
            interval_s=costs.interval(compute_s + updates_s, exposed_s),
        )


class ParameterServer(ParameterServerMessages):
    """Push and pull one after the other, after the backward pass."""

    name = "parameter-server"
    source = "bounds of the links (Li et al. 2014 give none)"
    hides = False
    overlapped = ParameterServerMessages.name

    def handled_share(self, inputs: CellInputs) -> float:
        """A worker's bytes over those of all workers, where a server or its node is the busier."""
        exchange = Exchange.of(inputs)
        return exchange.worker_s / exchange.transfer_s(exchange.workers)


class Ddlbench(BuiltInPredictor):
    """What the site measured, put together as the strategy's descriptor says."""

    name = DEFAULT_PREDICTOR
    source = "replay of what the strategy does, with measured parts"
    strategies = None

    def model(self, inputs: CellInputs) -> Prediction:
        strategy = inputs.strategy
        if strategy.pipeline_run(inputs.plan) is not None:
            return replayed(inputs, level=True)
        kind = inputs.workload.compute_kind
        preferred = strategy.preferred_on(kind)
        try:
            step = inputs.step
        except NotPredictable as error:
            if preferred in (None, DEFAULT_PREDICTOR):
                raise NotPredictable(
                    f"nothing predicts {strategy.name} on {kind} devices: {error}"
                ) from None
        else:
            if not step.has_servers:
                return predicted(inputs, step)
        return replace(_preferred(inputs, str(preferred)), predictor=DEFAULT_PREDICTOR)


def _preferred(inputs: CellInputs, name: str) -> Prediction:
    """What a model predicts; where it hides nothing, with as much hidden as the links allow.

    ::

        exposed = all hidden + (1 - hidden share) * handled share * (nothing hidden - all hidden)
    """

    def prediction_of(model: Predictor) -> Prediction:
        return model.predict(
            inputs.workload, inputs.measured_links, inputs.plan, inputs.cell, inputs.history
        )

    model = predictor_of(name)
    prediction = prediction_of(model)
    if not isinstance(model, BuiltInPredictor) or model.overlapped is None:
        return prediction
    cell = inputs.cell
    exposed = inputs.links.contention(cell.nodes, cell.devices_per_node, None).exposed_share
    hidden = prediction_of(predictor_of(model.overlapped))
    longer_s = prediction.exposed_communication_s - hidden.exposed_communication_s
    longer_s *= model.handled_share(inputs)
    exposed_s = hidden.exposed_communication_s + exposed * max(0.0, longer_s)
    return replace(
        prediction,
        exposed_communication_s=min(exposed_s, prediction.communication_s),
        interval_s=None,
    )
