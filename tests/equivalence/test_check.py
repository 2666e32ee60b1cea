"""``ddlbench check`` with real ranks: what trains the same, another thing, or not at all."""

from __future__ import annotations

import json

import pytest
from cases.checked_parts import HERE
from click.testing import CliRunner

from ddlbench import cli
from ddlbench.common.errors import ConfigError
from ddlbench.equivalence.examination import Examination
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import SHIPPED_STRATEGIES


def cell_of(strategy: str, network: str = "plain", **options) -> Cell:
    return Cell(
        dataset="cifar10",
        network=f"{HERE}:{network}" if ":" not in network else network,
        strategy=strategy,
        batch_size=1,
        learning_rate=0.05,
        options=tuple(options.items()),
    )


@pytest.fixture(scope="module")
def examination() -> Examination:
    """One for all tests, as one command has: what one device trains is kept."""
    return Examination()


@pytest.mark.parametrize("strategy", SHIPPED_STRATEGIES)
def test_a_plain_network_is_trained_alike(examination, strategy):
    verdict = examination.verdict_of(cell_of(strategy))
    if verdict.kind == "unsupported":
        assert "not installed" in str(verdict.reason)
        return
    assert (verdict.kind, verdict.reason) == ("equal", None)
    assert verdict.difference is not None and verdict.difference < 1e-12


@pytest.mark.parametrize("strategy", SHIPPED_STRATEGIES)
def test_adamw_trains_alike(examination, strategy):
    cell = cell_of(strategy).with_(optimizer="adamw", weight_decay=0.1)
    verdict = examination.verdict_of(cell)
    if verdict.kind == "unsupported":
        assert "not installed" in str(verdict.reason)
        return
    assert (verdict.kind, verdict.reason) == ("equal", None)
    assert verdict.difference is not None and verdict.difference < 1e-10


@pytest.mark.parametrize(
    "cell",
    [
        cell_of("pipedream", vertical_sync=True),
        cell_of("pipedream", replicas=2),
        cell_of("pipedream", replicas="2+1"),
        cell_of("pipedream").with_(learning_rate_warmup_steps=3),
        cell_of("local-sgd", average_every_steps=2, outer_optimizer="nesterov"),
        cell_of("pipe-1f1b", chunks=2),
        cell_of("ddp", accumulate=2),
        cell_of("ddp").with_(weight_decay=0.1),
        cell_of("ddp", shard="optimizer").with_(optimizer="adamw"),
        cell_of("pipedream", replicas="2+1").with_(optimizer="adamw"),
        cell_of("local-sgd", average_every_steps=1).with_(optimizer="adamw"),
    ],
    ids=lambda cell: f"{cell.strategy} {cell.variant}",
)
def test_options_are_replayed_too(cell):
    devices = 3 if cell.option("replicas") == "2+1" else 2
    assert Examination((1, devices)).verdict_of(cell).kind == "equal"


@pytest.mark.parametrize(
    "strategy", ["local-sgd", "parameter-server", "model-parallel-p2p", "pipedream"]
)
def test_weights_that_are_not_trained_stay(examination, strategy):
    verdict = examination.verdict_of(cell_of(strategy, "kept"))
    assert verdict.kind in ("equal", "unsupported"), verdict.reason


def test_a_type_that_the_network_fixes_is_compared_as_it_rounds(examination):
    assert examination.look(cell_of("ddp", "half")).floating == "as built"
    assert examination.verdict_of(cell_of("ddp", "half")).kind == "equal"
    wrong = examination.verdict_of(cell_of(f"{HERE}:Doubled", "half"))
    assert wrong.kind == "different"


def test_a_wrong_gradient_is_different(examination):
    verdict = examination.verdict_of(cell_of(f"{HERE}:Doubled"))
    assert verdict.kind == "different"
    assert verdict.difference is not None and verdict.difference > 1e-3
    assert "differs by" in str(verdict.reason)


def test_random_numbers_are_allowed_for(examination):
    verdict = examination.verdict_of(cell_of("ddp", "noisy"))
    assert (verdict.kind, verdict.reason) == ("equal", "within what its random numbers change")


def test_weights_that_no_seed_fixes_are_refused(examination):
    verdict = examination.verdict_of(cell_of("ddp", "unseeded"))
    assert verdict.kind == "unsupported"
    assert "different initial weights" in str(verdict.reason)


@pytest.mark.parametrize(
    ("strategy", "kind", "reason"),
    [
        ("Wrapped", "failed", "ValueError: cannot reshape array of size 2 into shape (3,)"),
        ("Killed", "failed", "a rank was killed by SIGSEGV"),
        ("Refusing", "unsupported", "block 3 cannot be cut"),
        ("OutOfOrder", "unsupported", "its ranks may train with older weights"),
    ],
)
def test_a_rank_that_does_not_train_says_why(examination, strategy, kind, reason):
    verdict = examination.verdict_of(cell_of(f"{HERE}:{strategy}"))
    assert (verdict.kind, verdict.difference) == (kind, None)
    assert str(verdict.reason).startswith(reason)


def test_a_hang_is_a_failure():
    verdict = Examination(limit_s=2).verdict_of(cell_of(f"{HERE}:Hanging"))
    assert verdict.kind == "failed"
    assert str(verdict.reason).startswith("the ranks hang: no end after")


def test_a_network_that_one_device_cannot_train_fails_everywhere(examination):
    verdict = examination.verdict_of(cell_of("ddp", "untrainable"))
    assert verdict.kind == "failed"
    assert verdict.reason.startswith("one device cannot train the network: ")
    assert "block '3' fails" in verdict.reason
    assert "ValueError: no gradient can pass" in verdict.reason


def test_a_network_that_cannot_be_built_is_wrong_input(examination):
    with pytest.raises(ConfigError, match="nothing_there"):
        examination.verdict_of(cell_of("ddp", f"{HERE}:nothing_there"))


def run(*arguments: str):
    network = f"{HERE}:plain"
    return CliRunner().invoke(
        cli.commands, ["check", "--network", network, "--dataset", "cifar10", *arguments]
    )


def test_the_command_prints_json_and_exits_by_the_verdicts():
    right = run("--strategy", "sequential,ddp", "--json")
    assert right.exit_code == 0, right.output
    entries = json.loads(right.output)
    assert [entry["strategy"] for entry in entries] == ["sequential", "ddp"]
    assert {entry["verdict"] for entry in entries} == {"equal"}
    assert entries[1]["network"] == f"{HERE}:plain"
    assert entries[1].keys() >= {"dataset", "difference", "reason", "options"}
    wrong = run("--strategy", f"{HERE}:Doubled", "--json", "--batch-size", "4")
    assert wrong.exit_code == 1
    (entry,) = json.loads(wrong.output)
    assert (entry["verdict"], entry["batch_size"]) == ("different", 4)


def test_the_command_prints_a_line_a_strategy():
    shown = run("--strategy", "ddp", "--strategy", f"{HERE}:Doubled")
    assert shown.exit_code == 1
    lines = shown.output.splitlines()
    assert lines[0] == f"{HERE}:plain on cifar10, and one device:"
    assert lines[1].split() == ["ok", "ddp", "equal"]
    assert lines[2].startswith("!!") and "different" in lines[2]
    assert lines[-1] == "1 equal, 1 different"
    assert max(map(len, lines)) <= 80


def test_wrong_input_is_one_sentence():
    wrong = run("--strategy", "no-such-strategy")
    assert isinstance(wrong.exception, ConfigError)
    assert "no-such-strategy" in str(wrong.exception)
    other = CliRunner().invoke(
        cli.commands, ["check", "--network", "gpt-tiny", "--dataset", "mnist"]
    )
    assert isinstance(other.exception, ConfigError)
    assert "gpt-tiny reads tokens" in str(other.exception)
