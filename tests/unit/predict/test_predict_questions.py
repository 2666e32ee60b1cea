"""What the options of `recommend`, `predict` and `tune` ask: alone, and beside an experiment."""

from __future__ import annotations

import json
from dataclasses import replace

import predict_factory as make
import pytest
from click.testing import CliRunner

from ddlbench.cli import commands
from ddlbench.commands.questions import case_id, questions_of
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.site import load_site

GIVEN = {
    "configfile": None, "site_name": None, "network": "vgg11", "dataset": "mnist",
    "geometry": "1x2", "batch_size": 16, "fabric": None, "precision": None,
    "optimizer": None, "threads": None,
    "options": (),
}  # fmt: skip
NOTHING = dict.fromkeys(("network", "dataset", "geometry", "batch_size"))
EXPERIMENT = """\
experiment: trial
site: local
matrix:
  dataset: [mnist]
  network: [vgg11]
  strategy: [sequential, ddp, gpipe]
  geometry: [1x2]
settings: {batch_size: 16, loader_workers: 1}
strategies: {gpipe: {chunks: 8}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    links = make.links(make.pair([0] * 4))
    make.write_site(tmp_path / "results", make.profile((make.MB,) * 23), links)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: range(4))
    return tmp_path


@pytest.fixture
def configfile(folder):
    """Write an experiment, with these lines changed."""

    def written(**changes):
        text = EXPERIMENT
        for name, value in changes.items():
            (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name}:"))
            text = text.replace(line, f"{line.partition(':')[0]}: {value}")
        path = folder / "mine.yaml"
        path.write_text(text)
        return path

    return written


def questions_with(**changes):
    return questions_of({**GIVEN, **changes})


def test_options_make_a_question():
    actual = questions_with(
        precision="bf16", threads=2, options=("gpipe.chunks=8", "ddp.hook=fp16")
    )
    question = actual.single
    assert (question.network, question.dataset, question.geometry) == ("vgg11", "mnist", "1x2")
    assert question.settings == {"precision": "bf16", "threads_per_device": 2}
    assert question.options == {"gpipe": {"chunks": 8}, "ddp": {"hook": "fp16"}}
    assert (actual.site.name, actual.configfile) == ("local", None)


def test_a_fabric_that_nobody_has_is_refused():
    with pytest.raises(ConfigError, match="site local has no fabric 'slow'"):
        questions_with(fabric="slow")


def test_a_precision_that_no_cell_has_is_refused():
    with pytest.raises(ConfigError, match="--precision: 'fp8' is not allowed; write fp32"):
        questions_with(precision="fp8")


def test_what_nobody_writes_is_no_setting():
    assert questions_with().single.settings == {}
    assert case_id(questions_with().single) == "mnist/vgg11/1x2/batch_size=16"


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_what_is_missing_is_named(name):
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is missing"):
        questions_with(**{name: None})


@pytest.mark.parametrize("text", ["chunks=8", "gpipe.chunks", "gpipe.=8", ".chunks=8"])
def test_an_option_without_its_strategy_is_refused(text):
    with pytest.raises(ConfigError, match=r"gpipe\.chunks=8"):
        questions_with(options=(text,))


def test_several_geometries_are_several_questions():
    actual = questions_with(geometry="1x2, 1x4,2x2")
    assert [question.geometry for question in actual.each] == ["1x2", "1x4", "2x2"]
    with pytest.raises(ConfigError, match="takes one geometry"):
        _ = actual.single
    with pytest.raises(ConfigError, match="--geometry"):
        questions_with(geometry="1x2,four")


def test_names_are_checked():
    with pytest.raises(ConfigError, match="did you mean 'alexnet'"):
        questions_with(network="alexnt")
    with pytest.raises(ConfigError, match="unknown strategy 'gpip'"):
        questions_with(options=("gpip.chunks=8",))


def test_an_experiment_says_what_is_not_written(configfile):
    actual = questions_with(configfile=configfile(), **NOTHING)
    question = actual.single
    assert (question.network, question.dataset, question.geometry) == ("vgg11", "mnist", "1x2")
    assert question.batch_size == 16
    assert actual.configfile is not None
    cell = question.cell("gpipe")
    assert (cell.option("chunks"), cell.loader_workers) == (8, 1)
    assert question.cell("sequential").geometry == "1x1"


def test_choices_of_differing_experiments_lie_apart(configfile):
    """Their settings and options decide the steps that are measured."""
    questions = []
    for settings, options in (("fp32", "2"), ("bf16", "2"), ("fp32", "8")):
        path = configfile(
            settings=f"{{batch_size: 16, precision: {settings}}}",
            strategies=f"{{gpipe: {{chunks: {options}}}}}",
        )
        questions.append(questions_with(configfile=path, **NOTHING).single)
    cells = {question.cell("gpipe").id for question in questions}
    assert len(cells) == 3
    assert len({case_id(question) for question in questions}) == 3
    assert questions[1].to_dict()["settings"]["precision"] == "bf16"


def test_what_is_written_goes_before_the_experiment(configfile):
    path = configfile()
    actual = questions_with(
        configfile=path, network="resnet18", dataset="cifar10", geometry="1x4", batch_size=64,
        options=("gpipe.chunks=4",),
    ).single  # fmt: skip
    assert (actual.network, actual.dataset, actual.geometry, actual.batch_size) == (
        "resnet18", "cifar10", "1x4", 64,
    )  # fmt: skip
    cell = actual.cell("gpipe")
    assert dict(cell.options).get("chunks", 4) == 4
    assert cell.loader_workers == 1  # of the experiment all the same


@pytest.mark.parametrize(
    ("line", "value", "option", "choices"),
    [
        ("network", "[vgg11, resnet18]", "network", ("vgg11", "resnet18")),
        ("dataset", "[mnist, cifar10]", "dataset", ("mnist", "cifar10")),
        ("geometry", "[1x2, 1x4]", "geometry", ("1x2", "1x4")),
    ],
)
def test_of_several_values_one_must_be_written(configfile, line, value, option, choices):
    path = configfile(**{line: value})
    with pytest.raises(ConfigError, match=f"--{option}") as error:
        questions_with(configfile=path, **NOTHING)
    assert all(choice in str(error.value) for choice in choices)
    assert "\n" not in str(error.value)
    for choice in choices:
        actual = questions_with(configfile=path, **{**NOTHING, option: choice}).single
        assert getattr(actual, option) == choice


def test_several_batches_want_one(configfile):
    path = configfile(geometry="[1x2]\n  batch_size: [16, 32]", settings="{loader_workers: 1}")
    with pytest.raises(ConfigError, match=r"--batch-size 16 \| 32"):
        questions_with(configfile=path, **NOTHING)
    assert questions_with(configfile=path, **{**NOTHING, "batch_size": 32}).single.batch_size == 32


def test_a_written_value_leaves_what_the_experiment_has_with_it(configfile):
    """VGG-11 has one geometry here, so it need not be written."""
    path = configfile(network="[vgg11, resnet18]", geometry="[1x2, 1x4]")
    path.write_text(path.read_text() + "exclude:\n  - {network: vgg11, geometry: 1x4}\n")
    assert (
        questions_with(configfile=path, **{**NOTHING, "network": "vgg11"}).single.geometry == "1x2"
    )


def test_the_same_question_by_options_and_by_an_experiment_has_the_same_answer(configfile):
    words = ("--network", "vgg11", "--dataset", "mnist", "--geometry", "1x2", "--batch-size", "16")
    path = configfile(settings="{batch_size: 16}", strategies="{}")

    def answer_of(*given):
        ended = CliRunner().invoke(commands, ["recommend", *given, "--json"])
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout)

    by_options, by_file = answer_of(*words), answer_of("--configfile", str(path))
    assert [(c["strategy"], c["cell_id"], c["step_s"]) for c in by_options["candidates"]] == [
        (c["strategy"], c["cell_id"], c["step_s"]) for c in by_file["candidates"]
    ]
    assert by_options["recommended"] == by_file["recommended"]


def test_sizes_are_compared_on_the_screen_and_in_json(folder):
    words = ["recommend", "--network", "vgg11", "--dataset", "mnist", "--batch-size", "32"]
    words += ["--geometry", "1x4,1x2"]
    ended = CliRunner().invoke(commands, [*words, "--json"])
    assert ended.exit_code == 0, ended.output
    answer = json.loads(ended.stdout)
    assert [each["geometry"] for each in answer["geometries"]] == ["1x2", "1x4"]  # the fewest first
    shown = CliRunner().invoke(commands, words).output
    assert all(sentence in " ".join(shown.split()) for sentence in answer["advice"])
    assert len(list(folder.rglob("sizes.png"))) == 1
    with pytest.raises(ConfigError, match="one geometry"):
        CliRunner().invoke(commands, [*words, "--measure", "1"], catch_exceptions=False)


@pytest.mark.parametrize("command", ["predict", "recommend tune", "recommend largest-batch"])
def test_other_commands_take_one_geometry(command):
    words = [*command.split(), "--strategy", "ddp", "--network", "vgg11", "--dataset", "mnist"]
    words += ["--geometry", "1x2,1x4"]
    words += [] if "largest-batch" in command else ["--batch-size", "16"]
    with pytest.raises(ConfigError, match="takes one geometry"):
        CliRunner().invoke(commands, words, catch_exceptions=False)


def test_a_prediction_above_its_bound_is_told_as_such():
    words = ["predict", "--strategy", "model-parallel", "--network", "vgg11", "--dataset", "mnist"]
    words += ["--geometry", "1x2", "--batch-size", "16", "--json"]
    answer = json.loads(CliRunner().invoke(commands, words).stdout)
    assert answer["bound"] == 1
    assert answer["predictions"][0]["step_s"] > 0


def largest_batch(strategy: str, *words: str) -> tuple[int, dict, str]:
    """The predicted largest batch, its options, and what is printed."""
    line = f"recommend largest-batch --strategy {strategy} --network vgg11 --dataset mnist"
    line += " --geometry 1x4 --dry-run --device-memory-bytes 200000000"
    ended = [
        CliRunner().invoke(commands, [*line.split(), *words, *more], catch_exceptions=False)
        for more in (["--json"], [])
    ]
    answer = json.loads(ended[0].stdout)
    return answer["batch_size"], answer["options"], " ".join(ended[1].output.split())


def test_the_largest_batch_has_options_that_suit_a_large_batch():
    """Not those that are fitted to a batch of one sample."""
    assert largest_batch("gpipe", "--option", "gpipe.chunks=4")[0] > 4
    assert largest_batch("gpipe")[1]["chunks"] >= 4


@pytest.mark.parametrize("strategy", ["gpipe", "pipe-1f1b"])
def test_the_largest_batch_is_of_the_number_of_micro_batches_that_fits_most(strategy):
    by_chunks = {
        chunks: largest_batch(strategy, "--option", f"{strategy}.chunks={chunks}")[0]
        for chunks in (4, 8, 16)
    }
    size, options, sentences = largest_batch(strategy)
    assert size == max(by_chunks.values()) == by_chunks[options["chunks"]] > by_chunks[4]
    assert f"with chunks={options['chunks']} (" in sentences


def test_the_largest_batch_of_a_dry_run():
    words = ["recommend", "largest-batch", "--strategy", "ddp", "--network", "vgg11"]
    words += [
        "--dataset",
        "mnist",
        "--geometry",
        "1x2",
        "--dry-run",
        "--json",
        "--device-memory-bytes",
        "200000000",
    ]
    ended = CliRunner().invoke(commands, words)
    assert ended.exit_code == 0, ended.output
    answer = json.loads(ended.stdout)
    assert 0 < answer["needed_bytes"] <= 200_000_000
    assert answer["batch_size"] % 2 == 0


@pytest.mark.parametrize("command", ["predict", "tune", "largest-batch"])
def test_more_devices_than_the_site_has_are_remarked_on(monkeypatch, command):
    site = replace(load_site("local"), launcher="slurm", devices_per_node=2)
    monkeypatch.setattr("ddlbench.commands.questions.load_site", lambda name: site)
    words = ["--strategy", "ddp", "--network", "vgg11", "--dataset", "mnist", "--geometry", "1x4"]
    words += [] if command == "largest-batch" else ["--batch-size", "16"]
    if command == "largest-batch":
        words += ["--device-memory-bytes", "200000000"]
    if command != "predict":
        words = ["recommend", command, "--dry-run", *words]
    else:
        words = ["predict", *words]
    ended = CliRunner().invoke(commands, words, catch_exceptions=False)
    assert "Predicted beyond what can be measured: site local has 1 node" in " ".join(
        ended.output.split()
    )


def test_a_network_that_does_not_exist_is_refused_before_its_profile_is_asked_for(monkeypatch):
    tried = []

    def refuse(network, dataset, site):
        tried.append(network)
        raise ConfigError("there is no module mynets")

    monkeypatch.setattr("ddlbench.commands.questions.check_can_be_built", refuse)
    with pytest.raises(ConfigError, match="no module mynets"):
        questions_with(network="mynets:cnn")
    assert questions_with(network="vgg16").single.network == "vgg16"  # built in, without a profile
    assert tried == ["mynets:cnn"]


def test_a_label_is_answered_with_the_name():
    words = ["predict", "--strategy", "zero bubble", "--network", "vgg11", "--dataset", "mnist"]
    words += ["--geometry", "1x2", "--batch-size", "16"]
    with pytest.raises(ConfigError, match="label of strategy pipe-zb; write pipe-zb"):
        CliRunner().invoke(commands, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("memory", "sentence"),
    [("100", "of 100 bytes."), ("500000000000000", "of 500 TB predicted")],
)
def test_odd_memories_are_shown_in_a_unit_that_suits(memory, sentence):
    words = ["recommend", "largest-batch", "--strategy", "ddp", "--network", "vgg11", "--dataset"]
    words += ["mnist", "--geometry", "1x2", "--dry-run", "--device-memory-bytes", memory]
    ended = CliRunner().invoke(commands, words, catch_exceptions=False)
    assert sentence in " ".join(ended.output.split())


def test_what_an_emulated_device_lacks_is_named_before_a_profile():
    words = [
        "--site",
        "accelerators",
        "--network",
        "vgg11",
        "--dataset",
        "mnist",
        "--geometry",
        "2x4",
    ]
    with pytest.raises(ConfigError, match="has no table .*ddlbench site accelerator one-core"):
        CliRunner().invoke(
            commands, ["recommend", *words, "--batch-size", "64"], catch_exceptions=False
        )
