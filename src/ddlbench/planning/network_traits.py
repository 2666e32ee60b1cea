"""Traits of a network that decide which strategies can train it; they need no torch.

::

    networks/inspection.py    builds the network and fills the traits, with one tiny pass
    Strategy.why_not_network  reads them: before a job (``ddlbench plan``), and in every rank

Built-in networks have none of these traits, so that nothing is inspected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddlbench.experiment.form import Form
from ddlbench.experiment.status import Reason
from ddlbench.planning.plan import Plan, parts_of
from ddlbench.planning.strategy import strategy_of

COMPLEX_AS_REAL = "keep a complex weight's two parts in a real one (torch.view_as_complex)"


@dataclass(frozen=True)
class NetworkTraits(Form):
    """What a network has that not every strategy can train. Names are those of weights or blocks.

    Args:
        blocks: names of all blocks, in order; empty if the network was not inspected.
        without_gradient: blocks whose output is no number that a gradient can belong to.
        unused: trained weights that a backward pass leaves without a gradient.
        irregular: trained weights that some steps use and others do not.
        sparse: weights whose gradient is sparse.
        scalars: trained weights without a dimension.
        strided: trained weights that are not contiguous (channels-last, transposed).
        complex: trained weights of complex numbers.
        bfloat16: trained weights of that type.
        hooked: weights with hooks on their gradient, which a copy of the weight would lose.
        whole_numbers: parameters of whole numbers, which no optimiser trains.
        mixed_types: blocks whose trained weights are of several types.
        trains: whether a gradient reaches any weight.
        borrowed: blocks that hold a weight or a layer of another block in a plain attribute.
        written: trained weights that a forward pass changes.
        backward_within: whether its forward pass calls ``backward``.
        gradients_within: whether its forward pass takes gradients itself, to be differentiated
            again.
        batch_norm: whether a layer normalises over the samples of a pass.
        needs_two_samples: whether training fails on a single sample.
        random: whether a layer draws random numbers (dropout).
    """

    blocks: tuple[str, ...] = ()
    without_gradient: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    irregular: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    strided: tuple[str, ...] = ()
    complex: tuple[str, ...] = ()
    bfloat16: tuple[str, ...] = ()
    hooked: tuple[str, ...] = ()
    whole_numbers: tuple[str, ...] = ()
    mixed_types: tuple[str, ...] = ()
    trains: bool = True
    borrowed: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    backward_within: bool = False
    gradients_within: bool = False
    batch_norm: bool = False
    needs_two_samples: bool = False
    random: bool = False


def samples_per_pass(plan: Plan) -> int:
    """Samples that a forward pass of the network sees: a rank's, or a micro-batch's."""
    return max(1, plan.cell.batch_size // parts_of(plan))


def why_not_trained(traits: NetworkTraits, plan: Plan) -> Reason | None:
    """Why a plan's strategy cannot train a network with these traits; None if it can.

    Args:
        traits: of the network.
        plan: what would run.
    """
    strategy = strategy_of(plan.cell.strategy)
    if not traits.trains:
        return Reason(
            "nothing_trained",
            "no gradient reaches a weight of the network, so nothing would be trained; have some "
            "weight require one (requires_grad_)",
        )
    if traits.backward_within and plan.world_size > 1:
        return Reason(
            "backward_within",
            "the network calls backward() in its forward pass, whose gradients no other rank "
            "knows; add its loss to the outputs' by a torch.autograd.Function",
        )
    if traits.needs_two_samples and samples_per_pass(plan) == 1:
        return Reason(
            "one_sample_normalised",
            f"with {plan.cell.strategy} each pass sees one sample, and batch norm needs two or "
            f"more; raise batch_size to {2 * plan.cell.batch_size} or more",
        )
    return strategy.why_not_network(traits, plan)


def unsupported_weights(library: str, names: Iterable[str], why: str, instead: str) -> Reason:
    """The refusal of weights by a strategy's library."""
    return Reason("weights_unsupported", f"{library} {why} ({named(names)}); {instead}")


def borrowing(traits: NetworkTraits) -> Reason:
    """The refusal of blocks that read other blocks' weights, by strategies that part them."""
    return Reason(
        "weights_unsupported",
        f"block {named(traits.borrowed)} holds a weight of another block, which may lie on another "
        "device, or not be whole; hand on values from block to block",
    )


def named(names: Iterable[str]) -> str:
    """Some names for a sentence: the first two, and how many more there are.

    >>> named(["a", "b", "c"])
    'a, b and 1 more'
    """
    first, second, *rest = [*names, "", ""]
    text = ", ".join(filter(None, (first, second)))
    more = sum(bool(name) for name in rest)
    return f"{text} and {more} more" if more else text


def why_not_in_stages(traits: NetworkTraits, plan: Plan) -> Reason | None:
    """Why a pipeline cannot train the network, cut where the plan cuts it; None if it can.

    Several mini-batches, or parts of one, are under way at once, with the weights of each. A stage
    sends back the gradient of what it receives, and whole numbers have none.
    """
    if traits.written:
        return unsupported_weights(
            "a pipeline",
            traits.written,
            "keeps weights for later backward passes, and the forward pass changes some",
            "change them between steps only",
        )
    if traits.borrowed:
        return borrowing(traits)
    pipeline = strategy_of(plan.cell.strategy).pipeline_of(plan)
    for stage in pipeline.stages[:-1] if pipeline is not None else ():
        name = traits.blocks[stage.last - 1] if stage.last <= len(traits.blocks) else ""
        if name and name in traits.without_gradient:
            return Reason(
                "no_gradient_at_cut",
                f"the balance cuts after block {name!r}, whose output has no gradient to send back "
                "(whole numbers); write a balance that keeps it and the next block on one stage",
            )
    return None
