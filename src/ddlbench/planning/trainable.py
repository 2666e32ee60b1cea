"""Whether a plan's strategy can train a network, by its traits. Nothing here needs torch."""

from __future__ import annotations

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import few
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import NETWORKS
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import NetworkTraits, unsupported_weights
from ddlbench.planning.planner import StrategyPlan, make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.tried_networks import tried_traits


def samples_per_pass(plan: StrategyPlan) -> int:
    """Samples that a forward pass of the network sees: a rank's, or a micro-batch's."""
    return max(1, plan.cell.batch_size // plan.parts)


def why_not_trained(
    traits: NetworkTraits, plan: StrategyPlan, device_kind: str = "cpu"
) -> Reason | None:
    """Why a plan's strategy cannot train a network with these traits; None if it can."""
    if (why := why_not_cut(traits, plan.cell)) is not None:
        return why
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
    return (
        _why_not_updated(traits, plan.cell)
        or _why_not_synchronised(traits, plan, device_kind)
        or _why_not_parted(traits, plan)
        or plan.strategy.why_not_layers(traits, plan.cell)
        or plan.strategy.why_not_network(traits, plan)
    )


def _why_not_updated(traits: NetworkTraits, cell: Cell) -> Reason | None:
    """Why torch's optimiser cannot take the gradients."""
    if not traits.sparse or (cell.optimizer == "sgd" and not cell.weight_decay):
        return None
    what = "SGD with weight decay" if cell.optimizer == "sgd" else "AdamW"
    instead = "write sparse=False, or take SGD without weight decay"
    return unsupported_weights(what, traits.sparse, "takes no sparse gradients", instead)


def _why_not_synchronised(
    traits: NetworkTraits, plan: StrategyPlan, device_kind: str
) -> Reason | None:
    """Why layers that send to all ranks in their passes cannot do so."""
    if not traits.synchronised or plan.world_size == 1:
        return None
    layers = f"SyncBatchNorm ({few(traits.synchronised)})"
    if device_kind == "cpu":
        return Reason(
            "device_unsupported", f"{layers} works on GPUs only; take nn.BatchNorm2d on CPUs"
        )
    if len({(process.role, process.stage) for process in plan.processes}) > 1:
        return Reason(
            "cannot_be_split",
            f"{layers} waits for all ranks, and with {plan.cell.strategy} some do not compute it; "
            "take nn.BatchNorm2d",
        )
    return None


def _why_not_parted(traits: NetworkTraits, plan: StrategyPlan) -> Reason | None:
    """Why the network cannot see a mini-batch in parts."""
    if traits.needs_two_samples and samples_per_pass(plan) == 1:
        return Reason(
            "one_sample_normalised",
            f"with {plan.cell.strategy} each pass sees one sample, and the network needs two or "
            "more (batch norm, or squeeze() without a dimension); raise batch_size to "
            f"{2 * plan.cell.batch_size} or more",
        )
    if traits.hooked_after and plan.parts > 1:
        return Reason(
            "weights_unsupported",
            f"hooks run on the gradient that a pass has accumulated ({few(traits.hooked_after)}), "
            f"and with {plan.cell.strategy} a pass sees a part of the batch; mask or scale a "
            "gradient by register_hook instead, or train on one device",
        )
    if traits.written_by_samples and plan.parts > 1:
        names = few(traits.written_by_samples)
        return Reason(
            "weights_unsupported",
            f"forward changes weights by the samples that it sees ({names}), and with "
            f"{plan.cell.strategy} a pass sees a part of the batch; leave that out (max_norm), or "
            "train on one device",
        )
    return None


def has_stages(cell: Cell) -> bool:
    """Whether the cell's strategy deals blocks to stages."""
    return cell.devices > 1 and "balance" in strategy_of(cell.strategy).options.defaults()


def why_not_cut(traits: NetworkTraits, cell: Cell) -> Reason | None:
    """Why a network that is one block has no stages for the cell's strategy; None if it needs none.

    It needs no plan, so that it is known before a profile tells the blocks.
    """
    if not (traits.uncut and has_stages(cell)):
        return None
    return Reason(
        "cannot_be_cut",
        f"the network trains, but cannot be cut into stages: {traits.uncut}; take a strategy "
        "without stages (ddp, horovod, fsdp), or return a torch.nn.Sequential of blocks",
    )


def why_never_trained(cell: Cell, traits: NetworkTraits, site: Site) -> str | None:
    """Why a cell cannot train such a network; None also where its plan needs a profile first."""
    strategy = strategy_of(cell.strategy, site.accelerator)
    why = (
        why_not_cut(traits, cell)
        or strategy.supports(cell)
        or strategy.why_not_layers(traits, cell)
    )
    if why is not None:
        return why
    try:
        plan = make_plan(cell, site.name, site.accelerator)
        return why_not_trained(traits, plan, site.device)
    except ConfigError:
        return None


def why_not_as_tried(cell: Cell, site: Site) -> str | None:
    """Why a cell cannot train a network that was tried on this machine; None if nothing says so."""
    if cell.network in NETWORKS.built_in or site.accelerator is not None:
        return None
    traits = tried_traits(cell.network, cell.dataset)
    return None if traits is None else why_never_trained(cell, traits, site)
