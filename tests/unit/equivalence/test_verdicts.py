"""What makes trained weights equal or different, without any rank."""

from __future__ import annotations

import math

import pytest
import torch

from ddlbench.common.errors import ConfigError
from ddlbench.equivalence import look
from ddlbench.equivalence.examination import Examination, Scope, Verdict, compare, joined, plain
from ddlbench.equivalence.look import Expected, Look, Noise
from ddlbench.equivalence.one_device import RankTraining, Trained, base_of
from ddlbench.equivalence.rank_pool import RankEnd, RanksFailedError
from ddlbench.equivalence.rounding import (
    TrialError,
    coarsest_eps,
    difference,
    explain,
    move_weights,
    tolerance,
    trains_in_float64,
)
from ddlbench.experiment.cell import Cell
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.strategies.executor import Unsupported

CELL = Cell("mnist", "mlp", "ddp", 8, devices_per_node=2)
WEIGHTS = {"a.weight": torch.ones(2, dtype=torch.float64), "n.running_mean": torch.zeros(2)}


def expected(noise: Noise | None = None, **changes) -> Expected:
    states = [{**WEIGHTS, **changes}, {**WEIGHTS, **changes}]
    trained = Trained(states, [[2.0, 1.0], [4.0, 3.0]])
    return Expected(trained, noise or Noise({}, 0.0), "float64", 2)


def rank(shard: int = 0, role: str = "worker", losses=None, **changes) -> RankTraining:
    of_shard = [[2.0, 1.0], [4.0, 3.0]][shard]
    state = {name: value for name, value in {**WEIGHTS, **changes}.items() if value is not None}
    return RankTraining(role, shard, state, of_shard if losses is None else losses)


def verdict(*ranks: RankTraining, scope: Scope | None = None, **changes) -> Verdict:
    return compare(CELL, expected(**changes), ranks, scope or Scope())


def test_the_same_weights_and_losses_are_equal():
    made = verdict(rank(0), rank(1))
    assert (made.kind, made.difference, made.reason) == ("equal", 0.0, None)


def test_the_largest_difference_is_named():
    made = verdict(rank(0), rank(1, **{"a.weight": torch.tensor([1.0, 1.25]).double()}))
    assert (made.kind, made.difference) == ("different", 0.25)
    assert made.reason == "a.weight of rank 1 differs by 2.5e-01"


def test_a_loss_is_that_of_the_rank_s_shard():
    assert verdict(rank(0), rank(1, losses=[])).kind == "equal"
    made = verdict(rank(0), rank(1, losses=[4.0, 3.5]))
    assert made.reason == "the loss of step 1 on rank 1 differs by 5.0e-01"
    assert verdict(rank(losses=[2.0])).reason == "rank 0 has losses of 1 step, not 2"


def test_statistics_of_other_samples_are_not_compared():
    other = rank(**{"n.running_mean": torch.ones(2)})
    assert verdict(other).kind == "different"
    assert verdict(other, scope=Scope(statistics=False)).kind == "equal"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"a.weight": None}, "no rank has a.weight"),
        ({"a.weight": torch.ones(3)}, "a.weight of rank 0 has the shape (3,), not (2,)"),
        ({"b": torch.ones(1)}, "rank 0 has b, which the network has not"),
    ],
)
def test_other_weights_are_different(changes, reason):
    made = verdict(rank(**changes))
    assert (made.kind, made.reason) == ("different", reason)


def test_a_weight_may_lie_on_any_rank_and_a_server_has_messages():
    first, second = {"a.weight": None}, {"n.running_mean": None}
    assert verdict(rank(**first), rank(**second)).kind == "equal"
    assert verdict(rank(), rank(role="server", message_0=torch.ones(9))).kind == "equal"


def test_what_is_not_a_number_is_different_unless_it_is_everywhere():
    nan = {"a.weight": torch.tensor([1.0, math.nan]).double()}
    made = verdict(rank(**nan))
    assert (made.kind, made.difference) == ("different", None)
    assert made.reason == "a.weight of rank 0 is not a number, unlike on one device"
    assert verdict(rank(**nan), **nan).kind == "equal"


def test_random_numbers_widen_what_is_equal():
    noise = Noise({}, 0.0, drawn=0.1, drawn_loss=0.1)
    other = rank(losses=[2.1, 1.0], **{"a.weight": torch.tensor([1.0, 1.25]).double()})
    made = compare(CELL, expected(noise), [other], Scope())
    assert (made.kind, made.reason) == ("equal", "within what its random numbers change")


def test_two_seeds_that_agree_by_chance_are_not_all_of_the_noise(monkeypatch):
    ends = {0: 1.0, 1: 1.1, 2: 1.5, 3: 0.8}

    def run(_training, seed, *, move=False):
        weights = {"a.weight": torch.full((2,), ends[seed], dtype=torch.float64)}
        start = {"a.weight": torch.zeros(2, dtype=torch.float64)}
        return look._Run(start, weights, torch.tensor([2 * ends[seed]], dtype=torch.float64))

    monkeypatch.setattr(look, "_run", run)
    noise = look._noise(CELL, "float64")
    assert (noise.drawn, noise.drawn_loss) == pytest.approx((0.5, 1.0))


def test_a_network_whose_loss_is_no_number_has_nothing_to_compare(monkeypatch):
    run = look._Run({"w": torch.zeros(1)}, {"w": torch.ones(1)}, torch.tensor([[math.nan, 1.0]]))
    monkeypatch.setattr(look, "_run", lambda *_, **__: run)
    with pytest.raises(ConfigError, match="its first loss is nan, and nothing can be compared"):
        look._noise(CELL, "float64")


def test_weights_that_do_not_follow_from_the_seed_are_refused():
    made = compare(CELL, expected(Noise({}, 0.0, start=0.5)), [rank()], Scope())
    assert (made.kind, made.difference) == ("unsupported", None)
    assert "one seed gives two different networks" in made.reason


def test_of_gradients_with_fewer_bits_only_the_first_loss_counts():
    scope = Scope(first_loss=True)
    other = rank(losses=[2.01, 7.0], **{"a.weight": torch.zeros(2)})
    assert verdict(other, scope=scope).kind == "equal"
    assert verdict(rank(losses=[3.0, 1.0]), scope=scope).kind == "different"


def test_of_several_balances_the_worst_is_told():
    cells = [CELL.with_(options=(("balance", text),)) for text in ("3+3", "5+1")]
    equal, wrong = Verdict(cells[0], "equal", 0.0), Verdict(cells[1], "different", 0.5, "so")
    assert joined([equal, wrong]) == Verdict(cells[1], "different", 0.5, "so (balance 5+1)")
    refused = Verdict(cells[1], "unsupported", None, "block 5 writes")
    assert joined([equal, refused]).reason == "not with balance 5+1: block 5 writes"
    assert joined([refused]) == refused


def test_difference_is_absolute_and_of_any_type():
    value = torch.tensor([1 + 1j])
    assert difference(value, torch.tensor([1 + 0j])) == 1.0
    assert difference(torch.tensor([2**60]), torch.tensor([2**60])) == 0.0
    assert difference(torch.ones(0), torch.ones(0)) == 0.0
    assert difference(torch.tensor([math.inf]), torch.tensor([1.0])) == math.inf


def test_rounding_explains_more_of_coarse_numbers():
    kinds = (torch.float64, torch.float32, torch.bfloat16)
    limits = [tolerance(torch.ones(1, dtype=kind), 0.0) for kind in kinds]
    assert limits == sorted(limits)
    assert limits[0] <= 1e-10
    assert tolerance(torch.ones(1, dtype=torch.int64), 1.0) == 0.0
    assert tolerance(torch.ones(1), 0.5) > 0.5


def test_moved_weights_differ_in_their_last_places():
    layer = torch.nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    move_weights(layer, seed=1)
    moved = (layer.weight / before - 1).abs().max()
    assert 0 < moved < 1e-5


def test_weights_move_by_what_a_pass_in_coarser_floats_can_see():
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eps = coarsest_eps(layer, torch.ones(2, 4))
    assert eps == torch.finfo(torch.bfloat16).eps
    before = layer.weight.detach().clone()
    move_weights(layer, seed=1, least_eps=eps)
    assert not torch.equal(layer.weight.bfloat16(), before.bfloat16())


class _Narrows(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.float().tanh().double()


@pytest.mark.parametrize(
    ("block", "exact"), [(torch.nn.Tanh(), True), (_Narrows(), False), (torch.nn.LSTM(4, 4), False)]
)
def test_float64_counts_only_if_every_operation_computes_in_it(block, exact):
    inputs, labels = torch.randn(2, 4, dtype=torch.float64), torch.tensor([0, 1])
    loss = torch.nn.functional.cross_entropy

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 4), block)

    assert trains_in_float64(make, inputs, labels, loss) is exact


def ends(*failed: RankEnd) -> TrialError:
    return explain(RanksFailedError("", False, failed), 60)


def test_the_rank_that_failed_by_itself_is_told():
    lost = TrialError.of(RuntimeError("Connection closed by peer [127.0.0.1]:4"))
    cause = TrialError.of(ZeroDivisionError("division by zero"))
    both = ends(RankEnd(0, "", lost), RankEnd(1, "", cause))
    assert (both.outcome, both.reason) == ("failed", "ZeroDivisionError: division by zero")
    killed = ends(RankEnd(0, "", lost), RankEnd(1, "", exit_code=-11))
    assert killed.reason == "a rank was killed by SIGSEGV"
    assert ends(RankEnd(0, "", exit_code=3)).reason == "a rank ended with exit status 3"


def test_an_error_says_its_innermost_cause():
    try:
        try:
            raise Unsupported("the network has one block")
        except Unsupported as inner:
            raise RuntimeError("a library says nothing") from inner
    except RuntimeError as outer:
        made = TrialError.of(outer)
    assert (made.outcome, made.reason) == ("unsupported", "the network has one block")
    assert TrialError.of(ConfigError("no such name")).outcome == "wrong input"
    long = TrialError.of(ValueError("First. Second.\nThird"))
    assert long.reason == "ValueError: First"


@pytest.mark.parametrize("strategy", ["gpipe", "pipe-1f1b"])
def test_a_network_that_is_one_block_is_refused_for_its_cause(strategy):
    cell = plain(Cell("mnist", "mine:net", strategy, 1))
    look = Look(1, NetworkTraits(uncut="it counts its calls"), "float64", None)
    verdict = Examination(_looks={(base_of(cell), True): look}).verdict_of(cell)
    assert (verdict.kind, verdict.cell.devices) == ("unsupported", 2)
    assert "cannot be cut into stages: it counts its calls" in verdict.reason
