"""The ``training`` part of a result, of what ranks reported."""

from __future__ import annotations

import pytest
from cases.rank_reports import rank_report

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.training import Training
from ddlbench.planning.planner import make_plan
from ddlbench.planning.trainable import samples_per_pass
from ddlbench.runtime.rank_report import training_of

CELL = Cell("mnist", "vgg11", "ddp", batch_size=16, devices_per_node=2)


def _training(*reports, cell=CELL):
    made = training_of(make_plan(cell), reports)
    assert Training.from_dict(made.to_dict()) == made
    return made


def test_losses_are_means_over_ranks_from_the_first_warm_up_step_on():
    made = _training(
        rank_report(warmup_loss=(3.0, 2.0), loss=(2.0, None) * 5, initial_digest="a1"),
        rank_report(rank=1, warmup_loss=(1.0, 2.0), loss=(1.0, 1.0) * 5, initial_digest="a1"),
        rank_report(rank=2),
    )
    assert made.first_loss == (2.0, 2.0, 1.5, None, 1.5, None, 1.5, None)
    assert (made.initial_digest, made.replayed_loss, made.samples_per_pass) == ("a1", (), 8)
    assert (made.batch_norm, made.random, made.settings) == (False, False, {})


def test_ranks_that_began_with_other_weights_have_a_digest_like_no_other():
    reports = [rank_report(rank=rank, initial_digest=name) for rank, name in enumerate("ba")]
    assert _training(*reports).initial_digest == "a+b"
    assert _training(rank_report()).initial_digest is None


def test_what_a_rank_knows_of_the_network_is_of_the_cell():
    made = _training(
        rank_report(torch_settings={"threads": 2, "default_dtype": "float32"}),
        rank_report(rank=1, batch_norm=True, random=True, replayed_loss=(2.0, None)),
    )
    assert (made.batch_norm, made.random, made.replayed_loss) == (True, True, (2.0, None))
    assert made.settings == {"threads": 2, "default_dtype": "float32"}
    assert made.first_loss == ()


@pytest.mark.parametrize(
    ("strategy", "devices", "options", "samples"),
    [
        ("sequential", 1, {}, 16),
        ("ddp", 4, {}, 4),
        ("ddp", 2, {"accumulate": 4}, 2),
        ("gpipe", 2, {"chunks": 8}, 2),
        ("model-parallel", 2, {}, 16),
        ("parameter-server", 3, {}, 8),
        ("pipedream", 2, {}, 16),
    ],
)
def test_a_pass_sees_a_micro_batch_of_a_share(strategy, devices, options, samples):
    cell = CELL.with_(strategy=strategy, devices_per_node=devices, options=tuple(options.items()))
    assert samples_per_pass(make_plan(cell)) == samples
