"""Which cells do not train as one device does, by made-up first losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.training import Training
from ddlbench.planning.departures import Departure, Trained, compared, departures

BASE_CELL = Cell("mnist", "vgg11", BASE, batch_size=8)
CELL = BASE_CELL.with_(strategy="ddp", devices_per_node=2)
LOSSES = (2.302, 2.304, 2.281, 2.270)


def trained(cell=CELL, losses=LOSSES, *, synchronous=True, **changes):
    values = {
        "initial_digest": "a1",
        "first_loss": tuple(losses),
        "samples_per_pass": 8,
        "batch_norm": False,
        "random": False,
    }
    return Trained(cell, Training(**{**values, **changes}), synchronous)


def departure(cell, base=None):
    """The sentence of a cell beside one of one device."""
    departing = departures([base or trained(BASE_CELL), cell]).get(cell.cell.id)
    return "" if departing is None else departing.sentence


def changed(step, loss):
    return tuple(loss if place == step else usual for place, usual in enumerate(LOSSES))


def first_losses(dtype=torch.float32, *, frozen=False, parts=1):
    """Losses of a small network's first steps; some parts of a mini-batch after another."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 5)).to(dtype)
    images = torch.randn(8, 16, 12, dtype=dtype)
    labels = torch.randint(5, (8, 16))
    weights = [network[2].weight] if frozen else list(network.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9)
    losses = []
    for image, label in zip(images, labels, strict=True):
        optimizer.zero_grad()
        total = 0.0
        for some in zip(image.chunk(parts), label.chunk(parts), strict=True):
            loss = nn.functional.cross_entropy(network(some[0]), some[1]) / parts
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        losses.append(total)
    return losses


def test_rounding_is_no_departure():
    base = trained(BASE_CELL, first_losses())
    assert departure(trained(losses=first_losses(parts=4)), base) == ""


def test_a_weight_that_stays_as_it_was_is_one():
    base = trained(BASE_CELL, first_losses())
    sentence = departure(trained(losses=first_losses(frozen=True)), base)
    assert sentence.startswith("does not train as one device does: loss ")


def test_the_sentence_names_both_losses():
    assert departure(trained(losses=changed(2, 2.294))) == (
        "does not train as one device does: loss 2.29 at step 3, 2.28 on one device"
    )
    assert departure(trained(losses=changed(2, 2.2811))).endswith(
        "loss 2.2811 at step 3, 2.281 on one device"
    )


@pytest.mark.parametrize(
    ("precision", "small", "large"),
    [("fp32", 1e-5, 1e-3), ("tf32", 1e-3, 3e-2), ("bf16", 1e-2, 1e-1)],
)
def test_the_bound_is_that_of_the_arithmetic(precision, small, large):
    base = trained(BASE_CELL.with_(precision=precision))
    for more, departs in ((small, False), (large, True)):
        cell = trained(CELL.with_(precision=precision), changed(3, LOSSES[3] + more))
        assert bool(departure(cell, base)) is departs


def test_a_batch_norm_over_other_samples_is_no_departure():
    base = trained(BASE_CELL, batch_norm=True)
    other = {"batch_norm": True, "samples_per_pass": 4}
    assert departure(trained(losses=changed(1, 2.5), **other), base) == ""
    assert departure(trained(losses=changed(1, 3.9), **other), base)
    assert departure(trained(losses=changed(1, None), **other), base)


def test_a_batch_norm_over_the_same_samples_amplifies_rounding_only():
    base = trained(BASE_CELL, batch_norm=True)
    assert departure(trained(losses=changed(0, LOSSES[0] + 1e-3), batch_norm=True), base)
    assert departure(trained(losses=changed(3, LOSSES[3] + 1e-3), batch_norm=True), base) == ""


def test_random_networks_are_held_against_the_gross_bound():
    base = trained(BASE_CELL, random=True)
    assert departure(trained(losses=changed(2, 2.4), random=True), base) == ""
    assert departure(trained(losses=changed(2, 9.0), random=True), base)


def test_not_a_number_at_the_same_step_is_the_same():
    base = trained(BASE_CELL, changed(3, None))
    assert departure(trained(losses=changed(3, None)), base) == ""
    assert departure(trained(losses=changed(2, None))) == (
        "does not train as one device does: loss NaN at step 3, 2.28 on one device"
    )
    assert departure(trained(), base).endswith("loss 2.27 at step 4, NaN on one device")


def test_nothing_is_compared_once_one_device_diverges():
    base = trained(BASE_CELL, (2.3, 2.4, 5.1, None))
    assert departure(trained(losses=(2.3, 2.4, 7.0, 90.0)), base) == ""
    assert departure(trained(losses=(2.3, 2.6, 7.0, 90.0)), base)


def test_old_weights_are_compared_at_the_first_step_and_with_the_replay():
    others = (2.302, 2.310, 2.299, 2.290)
    assert departure(trained(losses=others, synchronous=False)) == ""
    assert departure(trained(losses=(2.4, *others[1:]), synchronous=False))
    assert departure(trained(losses=others, synchronous=False, replayed_loss=others[:3])) == ""
    sentence = departure(trained(losses=others, synchronous=False, replayed_loss=LOSSES))
    assert sentence.endswith("loss 2.31 at step 2, 2.3 in its replay on one device")
    alone = trained(losses=others, synchronous=False, replayed_loss=LOSSES)
    assert departures([alone])[CELL.id].sentence == sentence


def test_gradients_that_are_sent_lossily_are_as_in_bf16():
    losses = changed(2, LOSSES[2] + 5e-3)
    lossy = CELL.with_(options=(("hook", "fp16"),))
    assert departure(trained(losses=losses))
    assert departure(trained(lossy, losses)) == ""


def test_cells_that_began_with_other_weights_are_not_compared():
    cell = trained(initial_digest="b2", losses=changed(0, 9.0))
    assert departure(cell) == "began with other weights than its base"
    assert departure(trained(initial_digest=None)) == ""
    # The base of another batch is no reference for losses, and has the same weights.
    large = CELL.with_(batch_size=16)
    assert departure(trained(large, changed(0, 9.0))) == ""
    assert departure(trained(large, initial_digest="b2")).startswith("began with other weights")


def test_without_a_base_the_cell_that_no_other_agrees_with_is_told():
    cells = [
        trained(CELL, initial_digest="a1"),
        trained(CELL.with_(strategy="gpipe"), initial_digest="a1"),
        trained(CELL.with_(strategy="horovod"), initial_digest="b2"),
    ]
    assert departures(cells) == {
        cells[2].cell.id: Departure("other_weights", "other cells of its network")
    }


@pytest.mark.parametrize(
    "setting",
    [
        {"seed": 1},
        {"batch_size": 16},
        {"precision": "bf16"},
        {"learning_rate": 0.1},
        {"momentum": 0.0},
        {"learning_rate_warmup_steps": 4},
        {"warmup_steps": 0},
        {"data_scale": 0.5},
        {"data_source": "real"},
    ],
)
def test_a_cell_of_other_steps_has_no_reference(setting):
    cell = trained(CELL.with_(**setting), changed(0, 9.0))
    (comparison,) = compared([trained(BASE_CELL), cell]).values()
    assert (comparison.reference, comparison.departure) == (None, None)


def test_the_reference_is_that_of_the_same_repeat():
    first, second = trained(BASE_CELL), trained(BASE_CELL.again(1), changed(0, 2.1))
    cell = trained(CELL.again(1).with_(threads_per_device=2, epochs=1), changed(0, 2.1))
    comparison = compared([first, second, cell])[cell.cell.id]
    assert (comparison.reference, comparison.departure) == (second.cell.id, None)


def test_a_cell_without_losses_does_not_depart():
    assert departure(trained(losses=())) == ""
    assert departure(trained(), trained(BASE_CELL, ())) == ""
