"""Traits of a network that decide which strategies can train it; they need no torch.

::

    networks/inspection.py    builds the network and fills the traits, with one tiny pass
    Strategy.why_not_network  reads them: before a job (``ddlbench plan``), and in every rank

Built-in networks have none of these traits, so that nothing is inspected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddlbench.common.form import Form
from ddlbench.experiment.status import Reason

COMPLEX_AS_REAL = "keep a complex weight's two parts in a real one (torch.view_as_complex)"


@dataclass(frozen=True)
class NetworkTraits(Form):
    """What a network has that not every strategy can train. Names are those of weights or blocks.

    Args:
        blocks: names of all blocks, in order; empty if the network was not inspected.
        uncut: why it is one block, as a clause; empty if it can be cut.
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
    uncut: str = ""
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


def unsupported_weights(library: str, names: Iterable[str], why: str, instead: str) -> Reason:
    """The refusal of weights by a strategy's library."""
    return Reason("weights_unsupported", f"{library} {why} ({named(names)}); {instead}")


def first_unsupported(library: str, *cases: tuple[Sequence[str], str, str]) -> Reason | None:
    """The refusal of the first weights that there are: (names, why, what to do instead)."""
    return next((unsupported_weights(library, *case) for case in cases if case[0]), None)


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
