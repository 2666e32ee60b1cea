"""A fault in a command, dataset or export of another package is a sentence that names it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ddlbench import cli
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.report.exports.registry import EXPORTS

COMMANDS = """
import click

def plain():
    click.echo("hello")

@click.command()
@click.option("--number", type=int)
def greet(number):
    {"a": 1}["b"]

@click.command()
@click.argument("file", type=click.File())
def show(file): ...

@click.command()
@click.argument("path")
def read(path): open(path)

@click.command()
def call(): raise ConnectionError("nobody listens")
"""


@pytest.fixture
def commands_of_a_package(third_party):
    targets = {name: name for name in ("plain", "greet", "show", "read", "call")}
    third_party("toy_commands", COMMANDS, {"ddlbench.commands": targets})
    cli._added.cache_clear()
    yield
    cli._added.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plain"], "command 'plain' of package toy_commands: .*write @click.command"),
        (["greet"], r"command 'greet' of .* fault in its code: KeyError: 'b' \(toy_commands.py"),
        (["call"], "command 'call' of .* fault in its code: ConnectionError: nobody listens"),
    ],
)
def test_a_faulty_command_is_named_with_its_package(commands_of_a_package, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        CliRunner().invoke(cli.commands, arguments, catch_exceptions=False)


@pytest.mark.parametrize("name", ["show", "read"])
def test_a_path_of_the_user_is_no_fault_of_a_package(commands_of_a_package, name, capsys):
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["ddlbench", name, "/no/such/file"])
        cli.main()
    message = capsys.readouterr().err
    assert "/no/such/file" in message
    assert "has a fault" not in message


def test_wrong_arguments_are_no_fault_of_a_package(commands_of_a_package):
    ended = CliRunner().invoke(cli.commands, ["greet", "--number", "one"])
    assert "Invalid value for '--number'" in ended.output


DATASETS_OF_A_PACKAGE = """
from ddlbench.experiment.dataset_spec import DatasetSpec

def odd(**others):
    facts = dict(num_classes=3, channels=1, height=4, width=5, num_train=24, num_val=6)
    return DatasetSpec("odd", "Odd", **(facts | dict(native_format="raw") | others))

SPEC = odd(FACTS)
"""


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ("num_val=-5", "num_val"),
        ("num_classes='10'", "num_classes"),
        ("height=0", "hold nothing"),
        ("white=2.0", "white"),
        ("native_format='npz'", "'npz' is none of idx, cifar, .*codec"),
        ("native_format='npz', codec='odd_data:NPZ'", "codec: odd_data has no NPZ"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused(third_party, facts, sentence):
    source = DATASETS_OF_A_PACKAGE.replace("FACTS", facts)
    third_party("odd_data", source, {"ddlbench.datasets": {"odd": "SPEC"}})
    with pytest.raises(ConfigError, match=f"dataset 'odd' .odd_data:SPEC.: .*{sentence}"):
        DATASETS["odd"]


EXPORTS_OF_A_PACKAGE = """
from ddlbench.report.exports.registry import ExportFormat

def nothing(tables, out, study): pass
def fails(tables, out, study): return 1 / 0

NOTHING = ExportFormat(nothing, "nothing at all", "nothing.txt")
FAILS = ExportFormat("toy_exports:fails", "no end", "fails.txt")
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "export 'nothing' of package toy_exports returns None; return a command"),
        ("fails", "export 'fails' of .* fault in its code: ZeroDivisionError"),
    ],
)
def test_a_faulty_export_is_named_with_its_package(third_party, tmp_path, name, sentence):
    targets = {"nothing": "NOTHING", "fails": "FAILS"}
    third_party("toy_exports", EXPORTS_OF_A_PACKAGE, {"ddlbench.exports": targets})
    helped = CliRunner().invoke(cli.commands, ["report", "export", "--help"]).output
    assert "nothing: nothing at all" in helped
    with pytest.raises(ConfigError, match=sentence):
        EXPORTS[name].written(name, None, tmp_path / "out", None)
