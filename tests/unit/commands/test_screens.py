"""What commands print fits the terminal: no row wraps, no heading breaks, no name is cut."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import shipped
import yaml
from click.testing import CliRunner

from ddlbench import cli
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import TIMES, duration_text, in_one_unit, size_text, two_digits
from ddlbench.common.screen import Column, paragraph, say_error, shortened, table
from ddlbench.experiment.cell import Cell, short_names
from ddlbench.experiment.paths import enter_project
from ddlbench.experiment.site import load_site

ROOT = Path(__file__).resolve().parents[3]
VGG16 = str(ROOT / "tests" / "unit" / "planning" / "pipedream_vgg16_graph.txt")
MEASURED = str(ROOT / "src" / "ddlbench" / "predict" / "paradl" / "published" / "measured.csv")
MANY_NODES = str(
    ROOT / "src" / "ddlbench" / "predict" / "transformer" / "published" / "many_nodes.csv"
)
DEMO_LINES = 25
SCREENS = [
    (["--help"], "Predict and choose:"),
    (["plan"], "Next: snakemake --profile profiles/local"),
    (["status"], "not run"),
    (["report"], "dataset"),
    (["oracle", "best", "resnet50", "--devices", "64", "--batch-size", "2048"], "strategy"),
    (["oracle", "limits", "resnet50", "--batch-size", "32"], "strategy"),
    (["oracle", "target", "resnet50", "--batch-size", "32", "--epoch-s", "3600"], "strategy"),
    (["oracle", "score", MEASURED], "worst cell"),
    *(
        pytest.param(["calibrate", *arguments], "fitted", marks=pytest.mark.slow)
        for arguments in (
            [MEASURED, "--hold-out", "network"],
            [MANY_NODES, "--platform", "megatron-a100"],
        )
    ),
    (["oracle", "partition", VGG16, "--machines", "4", "--bandwidth", "1e9"], "stage"),
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the repository's configuration, without results."""
    shutil.copytree(shipped.CONFIG, tmp_path / "config")
    (tmp_path / "Snakefile").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: range(2))
    return tmp_path


def printed(*args: str) -> str:
    result = CliRunner().invoke(cli.commands, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("args", "heading"), SCREENS, ids=lambda value: str(value)[:30])
def test_a_screen_fits_the_terminal(args, heading, width, project, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(*args).splitlines()
    assert heading in "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert args == ["--help"] or len(lines) <= DEMO_LINES
    cut = [line for line in lines if "..." in line or "…" in line]
    assert not [line for line in cut if not line.startswith("Usage:")]


def test_each_command_has_one_line_of_help(project, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed("--help").splitlines()
    for name in cli.commands.list_commands(click.Context(cli.commands)):
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1
    assert not any(line.startswith("      ") for line in lines)


def test_the_help_of_a_command_begins_with_its_line_in_the_list():
    context = click.Context(cli.commands)
    sentences = {name: text for group in cli.COMMANDS.values() for name, text in group.items()}
    for name, sentence in sentences.items():
        assert cli.commands.get_command(context, name).get_short_help_str(200) == sentence
    assert len(sentences) <= 12


def test_a_command_below_another_is_found_by_its_old_place(project):
    for words, right in (("timeline", "report timeline"), ("forget", "status forget")):
        with pytest.raises(ConfigError, match=f"did you mean '{right}'"):
            printed(words)
    assert "below" not in printed("report", "--help").lower()
    for name, below in cli.BELOW.items():
        assert all(f"  {each} " in printed(name, "--help") for each in below)


def test_long_names_of_a_later_column_lose_their_middle():
    columns = [Column("dataset"), Column("network"), Column("speed-up", right=True)]
    rows = [("photos", "ResNet-18 (torchvision)", "1.97"), ("photos", "cnn", "1.90")]
    lines = table(columns, rows, 36)
    assert max(map(len, lines)) <= 36
    assert lines[1].startswith("photos   Res..")
    assert lines[1].endswith("1.97")


def test_the_help_of_every_command_ends_with_examples_that_parse():
    for words in every_command(cli.commands):
        command = command_of(words)
        if isinstance(command, click.Group) and len(words) == 1 and words[0] not in cli.BELOW:
            continue
        lines = (command.epilog or "").replace("\\\n", " ").splitlines()[2:]
        assert lines, words
        for line in lines:
            name, *arguments = shlex.split(line.partition(">")[0])
            assert (name, arguments[: len(words)]) == ("ddlbench", [*words])
            command.make_context("example", arguments[len(words) :], resilient_parsing=True)
            known = {option for each in command.params for option in each.opts}
            assert {word for word in arguments if word.startswith("--")} <= known, line


def test_no_option_takes_a_number_that_is_not_finite():
    options = [param for words in every_command(cli.commands) for param in command_of(words).params]
    floats = [each for each in options if isinstance(each.type, click.types.FloatParamType)]
    assert len(floats) > 10
    for option in floats:
        for text in ("nan", "inf", "-inf"):
            with pytest.raises(click.BadParameter):
                option.type.convert(text, option, None)


def command_of(words: tuple[str, ...]) -> click.Command:
    command: click.Command = cli.commands
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    return command


def every_command(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from every_command(command, (*words, name))


@pytest.mark.parametrize("words", [(), *every_command(cli.commands)], ids=" ".join)
def test_help_fits_and_is_not_cut(words, project, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(*words, "--help").splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage:")]
    assert not [line for line in lines if "=None" in line]  # a limit that is none


def test_the_oracle_says_which_runs_depart_for_what_machine(project, monkeypatch):
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        done = CliRunner().invoke(cli.commands, ["oracle", "anomalies", MEASURED])
        assert done.exit_code == 1
        lines = done.output.splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= DEMO_LINES
        assert lines[0].startswith("11 of 38 runs depart over 25%")
        assert "ABCI" in done.output


def test_a_row_is_one_line_and_names_are_whole():
    columns = [Column("name"), Column("aside", drop=1), Column("time", right=True)]
    rows = [("short", "x" * 30, "1 s"), ("a-rather-long-name", "y", "27 min")]
    assert table(columns, rows, 80)[0] == f"name                aside{' ' * 29}time"
    narrow = table(columns, rows, 40)
    assert narrow == [
        "name                  time",
        "short                  1 s",
        "a-rather-long-name  27 min",
    ]
    assert table(columns, rows, 20) == [
        "name            time",
        "short            1 s",
        "a-rather-long-name",
        "              27 min",
    ]


def test_numbers_that_have_no_room_side_by_side_stand_behind_their_headings():
    headings = "devices | best strategy | > step | > speed-up | > eff. | > device-h | > memory"
    lines = table(headings, [("1x2", "DDP", "118 ms", "1.89", "95%", "0.33", "17 GB")], 40)
    assert lines == [
        "1x2, DDP",
        "  step 118 ms, speed-up 1.89, eff. 95%,",
        "  device-h 0.33, memory 17 GB",
    ]


def test_no_text_of_a_file_controls_the_terminal():
    hostile = "a\x1b[31mred\x1b]0;title\x07 \u202egnp"
    _heading, row = table("name | note", [(hostile, hostile)], 200)
    for text in (row, "".join(paragraph(hostile))):
        assert text.isprintable()
        assert "\\x1b[31mred" in text


def test_a_column_without_text_is_left_out():
    assert table([Column("a"), Column("b")], [("1", ""), ("2", "")], 80) == ["a", "1", "2"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (2e-5, "20 µs"), (0.0006779, "0.68 ms"), (0.07338, "73 ms"), (0.5, "500 ms"),
        (27.2, "27 s"), (300, "5.0 min"), (12510, "3.5 h"), (864_000, "10 days"), (None, "-"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    if seconds == 0.0006779:
        text = "678 µs"
    assert duration_text(seconds) == text


def test_numbers_have_two_digits():
    assert [two_digits(v) for v in (0, 0.0001, 0.123, 1.25, 9.97, 1234.5)] == [
        "0", "<0.001", "0.12", "1.2", "10", "1,234",
    ]  # fmt: skip
    assert size_text(9_280_000) == "9.3 MB"
    assert in_one_unit([0.0733, 0.0006779, None], TIMES) == ["73 ms", "0.68 ms", ""]


def test_short_names_say_what_differs_only():
    cell = Cell("mnist", "vgg11", "ddp", batch_size=16, devices_per_node=2, epochs=1)
    assert short_names([cell, cell.with_(batch_size=32)]) == [
        "mnist vgg11 ddp 1x2 batch_size=16",
        "mnist vgg11 ddp 1x2 batch_size=32",
    ]
    assert short_names([cell, cell.with_(repeat=1)])[1] == "mnist vgg11 ddp 1x2 rep1"


def test_plan_lists_cells(project, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = printed("plan", "--list")
    assert "  cifar10 resnet18 ddp 1x2\n" in listed
    assert json.loads(printed("plan", "--json"))["to_run"] == 3


def test_commands_find_the_repository_upwards(project, monkeypatch):
    below = project / "docs" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert "3 to run" in printed("plan")
    assert Path.cwd() == project
    own_config = below / "mine.yaml"
    own_config.write_text(
        (project / "config" / "config.yaml")
        .read_text()
        .replace("experiment: demo", "experiment: mine")
    )
    monkeypatch.chdir(below)
    assert "experiment: mine" in enter_project(Path("mine.yaml")).read_text()


def test_outside_a_repository_the_one_of_the_experiment_is_taken(project, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "3 to run" in printed("plan", "--configfile", str(project / "config" / "config.yaml"))
    assert Path.cwd() == project


def test_outside_a_repository_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no ddlbench repository"):
        printed("plan")


def test_a_site_that_is_not_filled_in_is_refused(project):
    with pytest.raises(ConfigError, match=r"slurm-example.yaml: replace REPLACE_ME in .*account"):
        printed("plan", "--site", "slurm-example")
    assert load_site("slurm-example", as_example=True).launcher == "slurm"
    path = project / "config" / "sites" / "mine.yaml"
    values = yaml.safe_load((project / "config" / "sites" / "local.yaml").read_text())
    path.write_text(yaml.safe_dump({**values, "setup": ["module load REPLACE_ME"]}))
    with pytest.raises(ConfigError, match="replace REPLACE_ME in setup"):
        load_site("mine")


def test_doctor_takes_the_site_of_the_experiment(project):
    with pytest.raises(ConfigError, match="site local starts its cells on this machine"):
        printed("site", "doctor")


@pytest.mark.parametrize(("terminal", "most"), [(True, 80), (False, 400)])
def test_an_error_is_wrapped_on_a_terminal_only(monkeypatch, capsys, terminal, most):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    say_error(ConfigError("a sentence of many words " * 8 + "\nstrategy: {gpipe: {chunks: 8}}"))
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= most
    assert (len(lines) > 2) == terminal
    assert lines[-1] == "strategy: {gpipe: {chunks: 8}}"


@pytest.mark.parametrize("room", [40, 44, 60])
def test_a_shortened_name_keeps_its_strategy_and_geometry(room):
    name = "cifar10 torchvision:mobilenet_v3_small pipe-1f1b 1x2 balance=profile"
    brief = shortened(name, room)
    assert len(brief) <= room
    assert " pipe-1f1b 1x2 " in brief


@pytest.mark.parametrize(
    ("word", "right"),
    [("tune", "recommend tune"), ("doctor", "site doctor"), ("partition", "oracle partition"),
     ("export", "report export"), ("show", "links show")],
)  # fmt: skip
def test_the_last_word_of_a_command_is_answered_with_all_of_it(word, right):
    with pytest.raises(ConfigError, match=f"did you mean .{right}.[?]"):
        CliRunner().invoke(cli.commands, [word], catch_exceptions=False)


@pytest.mark.parametrize("width", [20, 24])
def test_a_rank_stands_beside_the_name_that_it_belongs_to(width):
    rows = [("1=", "Parameter server", "1.5 s", "12 GB"), ("2", "DDP", "2.5 s", "1 GB")]
    lines = table(" | strategy | > predicted | > memory", rows, width)
    assert [line for line in lines if line[0] != " "][-2:] == ["1= Parameter server", "2 DDP"]
    assert lines[0] == "strategy"
    assert max(map(len, lines)) <= width
