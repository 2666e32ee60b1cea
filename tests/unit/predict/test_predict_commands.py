"""The commands: tables, JSON, and one sentence for what is wrong."""

import itertools
import json
import shutil
from pathlib import Path

import pandas as pd
import predict_factory as make
import pytest
import shipped
from click.testing import CliRunner
from predict_results import write_matrix, write_ok

from ddlbench.cli import commands
from ddlbench.commands.calibrate import calibrate
from ddlbench.commands.predict import _floor_text, accuracy, predict
from ddlbench.commands.recommend import recommend
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import BYTES, in_one_unit
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.paths import RESULTS, tables_dir
from ddlbench.planning.matrix import matrix_of
from ddlbench.report.measurements import make_tables

CELL = ["--network", "vgg11", "--dataset", "mnist", "--geometry", "1x2", "--batch-size", "16"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make.write_site(tmp_path / "results", make.profile(), make.links())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command, *arguments):
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: range(4))


def test_predict_has_one_answer_and_all_only_when_asked(folder):
    out = run(predict, *CELL, "--strategy", "horovod", "--json").output
    assert [entry["predictor"] for entry in json.loads(out)["predictions"]] == ["ddlbench"]
    out = run(predict, *CELL, "--strategy", "horovod", "--all", "--json").output
    by_predictor = {entry["predictor"]: entry for entry in json.loads(out)["predictions"]}
    assert {"ddlbench-eq1", "thesis-5.1-p2p", "thesis-5.1-transport", "linear"} <= set(by_predictor)
    assert by_predictor["linear"]["step_s"] == pytest.approx((0.1 + 0.16) / 2)
    assert len(by_predictor["linear"]["memory_bytes"]) == 2


def test_predict_and_recommend_show_the_memory_of_the_same_process(folder):
    """On CPUs the partitions of torchgpipe share the memory of one process."""
    out = run(recommend, *CELL, "--json").output
    ranked = {entry["strategy"]: entry for entry in json.loads(out)["candidates"]}
    values = json.loads(run(predict, *CELL, "--strategy", "gpipe", "--json").output)
    of_devices = values["predictions"][0]["memory_bytes"]
    assert ranked["gpipe"]["memory_bytes"] == sum(of_devices) > max(of_devices)
    (shown,) = in_one_unit([sum(of_devices)], BYTES)
    assert shown in run(predict, *CELL, "--strategy", "gpipe").output.splitlines()[2]


def test_predict_has_the_options_that_recommend_ranks_and_names_them(folder):
    case = [*CELL[:-1], "14"]  # which does not divide into the default of 4 micro-batches
    ranked = json.loads(run(recommend, *case, "--json").output)["candidates"]
    gpipe = next(c for c in ranked if c["strategy"] == "gpipe")
    out = json.loads(run(predict, *case, "--strategy", "gpipe", "--json").output)
    names = ("cell_id", "step_s")
    assert [out[name] for name in names] == [gpipe[name] for name in names]
    assert "Fitted to 1x2 and a batch of 14: chunks=" in run(
        predict, *case, "--strategy", "gpipe"
    ).output.replace("\n", " ")


def test_predict_prints_a_table_with_limits(folder):
    out = run(predict, *CELL, "--strategy", "gpipe", "--option", "gpipe.chunks=8").output
    assert "GPipe on 1x2 (2 CPU workers), 16 samples a step" in out
    assert "thesis-6" not in out
    assert "The papers' models and baselines beside it: --all." in out
    words = (*CELL, "--strategy", "gpipe", "--option", "gpipe.chunks=8", "--all")
    assert "thesis-6" in run(predict, *words).output
    full = run(predict, *words, "--why").output
    assert "on CPU all partitions share one process" in full


def test_recommend_json_and_table(folder):
    answer = json.loads(run(recommend, *CELL, "--json").output)
    assert answer["recommended"] in answer["tied"]
    assert {entry["strategy"] for entry in answer["candidates"]} >= {"horovod", "ddp", "gpipe"}
    shown = " ".join(run(recommend, *CELL).output.split())
    assert all(sentence in shown for sentence in answer["advice"])
    none = json.loads(run(recommend, *CELL, "--device-memory-bytes", "1", "--json").output)
    assert (none["recommended"], none["candidates"]) == (None, [])
    thesis = json.loads(run(recommend, *CELL, "--recommender", "thesis", "--json").output)
    assert thesis["recommender"] == "thesis"
    assert thesis["recommended"] == "sequential"
    with pytest.raises(ConfigError, match="unknown recommender"):
        run(recommend, *CELL, "--recommender", "theses")
    assert "Parts of a predicted step" in run(recommend, *CELL, "--why").output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strategy", "gpipe", "--option", "chunks"], "write strategy.option=value"),
        (["--strategy", "ddp", "--fabric", "x", "--predictor", "ddp-buckets"], "has no fabric .x."),
        (["--strategy", "ddp", "--threads", "2"], "there is no profile of vgg11 on mnist"),
        (["--strategy", "ddp", "--predictor", "eq9"], "unknown predictor 'eq9'"),
        (["--strategy", "dpp"], "unknown strategy"),
        (["--strategy", "dpp", "--option", "gpipe.chunks=8"], "unknown strategy 'dpp'"),
        (["--strategy", "ddp", "--option", "gpipe.chunks=8"], "gpipe.chunks has no effect on ddp"),
    ],
)
def test_predict_says_what_is_wrong(folder, arguments, says):
    with pytest.raises(ConfigError, match=says):
        run(predict, *CELL, *arguments)


@pytest.mark.slow
def test_accuracy_writes_predictions_and_tables(folder):
    config = folder / "experiment.yaml"
    config.write_text(
        "experiment: trial\nsite: local\n"
        "matrix: {dataset: [mnist], network: [vgg11], strategy: [sequential, ddp, model-parallel],"
        " geometry: [1x2]}\nsettings: {batch_size: 16}\n"
    )
    for strategy, step_s in (("sequential", 0.3), ("ddp", 0.2), ("model-parallel", 0.4)):
        geometry = "1x1" if strategy == "sequential" else "1x2"
        write_ok(folder / "results", make.cell(strategy, geometry, 16), step_s)
    tables = json.loads(run(accuracy, "--configfile", str(config), "--json").output)
    assert {entry["predictor"] for entry in tables["accuracy"]} >= {"sequential", "ddp-buckets"}
    assert tables["table_8_1"][0]["fastest"] == "ddp"
    lying = folder / "results" / "local" / "trial"
    assert (lying / "predictions.json").is_file()
    names = {path.name for path in (lying / "tables").iterdir()}
    csv = {"accuracy.csv", "table_6_1.csv", "table_8_1.csv", "table_8_2.csv"}
    csv |= {"table_8_1_published.csv", "table_8_2_published.csv"}
    assert names == csv | {"table_8_1.md", "table_8_2.md"}
    shown = run(accuracy, "--configfile", str(config)).output
    assert "Prediction errors of a step: trial on local" in shown
    assert "Recommended strategies (Table 8.1)" not in shown
    full = run(accuracy, "--configfile", str(config), "--all").output
    assert "Recommended strategies (Table 8.1)" in full
    assert not (lying / "figures").exists()
    run(accuracy, "--configfile", str(config), "--figures")
    drawn = {path.name for path in (lying / "figures" / "predictions").glob("*.png")}
    assert drawn >= {"accuracy.png", "deviation_ddp.png", "parts_model_parallel.png"}


@pytest.mark.parametrize(
    ("known", "shown", "text"),
    [
        ([0.05, None], [0.05], "floor: what a perfect model would score, "),
        ([0.05, None], [None], ""),
        ([None, None], [None], "Without repeats the noise is unknown."),
    ],
)
def test_the_column_floor_is_explained_where_it_is_shown(known, shown, text):
    series = [pd.Series(values, dtype="float64") for values in (known, shown)]
    assert _floor_text(*series).startswith(text)
    assert bool(_floor_text(*series)) == bool(text)


def test_measured_cells_of_the_site_serve_predictors_that_carry_them_on(folder):
    write_ok(folder / "results", make.cell("ddp", "1x2", 16), 0.2)
    words = ["--network", "vgg11", "--dataset", "mnist", "--geometry", "1x4", "--batch-size", "32"]
    out = run(predict, *words, "--strategy", "ddp", "--predictor", "carry-forward", "--json").output
    assert json.loads(out)["predictions"][0]["step_s"] == pytest.approx(0.2)
    ranked = json.loads(run(recommend, *words, "--recommender", "carry-forward", "--json").output)
    assert ranked["recommended"] == "ddp"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("why", [False, True])
def test_screens_fit_the_terminal(folder, monkeypatch, width, why):
    monkeypatch.setenv("COLUMNS", str(width))
    write_ok(folder / "results", make.cell("ddp", "1x2", 16), 0.2)
    write_ok(folder / "results", make.cell("sequential", "1x1", 16), 0.3)
    further = ["--why"] if why else []
    ranked = run(recommend, *CELL, *further).output.splitlines()
    predicted = run(predict, *CELL, "--strategy", "ddp", *further).output.splitlines()
    assert max(map(len, (*ranked, *predicted))) <= width
    assert why or (len(ranked) <= 25 and len(predicted) <= 25)
    every = run(predict, *CELL, "--strategy", "ddp", "--all", *further).output.splitlines()
    assert max(map(len, every)) <= width
    assert sum(line.startswith("->") for line in every) == 1
    assert sum(line.startswith("->") for line in predicted) == 0
    row = next(line for line in ranked if " DDP " in line)
    assert "200 ms" in row
    assert "DDP (measured, 1 run, 184-217 ms): 1.50x one device" in " ".join(ranked)
    assert "Measured here: 200 ms (1 repeat)." in " ".join(predicted)


CASE = ("--network", "resnet18", "--dataset", "cifar10", "--geometry", "1x2", "--batch-size", "16")
DEMO = [
    ("plan",),
    ("status",),
    ("report", "--show"),
    ("recommend", *CASE),
    ("predict", *CASE, "--strategy", "horovod"),
    ("predict", "accuracy"),
    ("links", "show", "results/local/links/default/links.json"),
    ("oracle", "anomalies", "results/local/demo/predictions.json"),
]


@pytest.mark.slow
def test_every_screen_of_the_measured_demo_fits(tmp_path, monkeypatch):
    shutil.copytree(shipped.CONFIG, tmp_path / "config")
    (tmp_path / "Snakefile").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: range(2))
    experiment, site, rows = matrix_of(read_yaml(Path("config/config.yaml")))
    write_matrix(RESULTS, rows)
    make_tables(experiment.name, site.name, rows, RESULTS, tables_dir(site.name, experiment.name))
    for words in DEMO:
        for width in (80, 120):
            monkeypatch.setenv("COLUMNS", str(width))
            shown = run(commands, *words).output.splitlines()
            assert max(map(len, shown)) <= width, (words, shown)
            assert 1 <= len(shown) <= 25, (words, shown)
            assert not any("..." in line for line in shown), words
        if words == ("predict", "accuracy"):
            assert len(run(commands, *words, "--all").output.splitlines()) > 25


def test_a_missing_file_is_one_sentence_with_the_whole_command(folder):
    shutil.copytree(shipped.CONFIG, folder / "config")
    (folder / "Snakefile").write_text("")
    shutil.rmtree(folder / "results")
    with pytest.raises(ConfigError) as error:
        run(recommend, *CELL)
    files = "results/local/profiles/mnist/vgg11/fp32-1t/profile.json"
    links = "results/local/links/default/links.json"
    assert str(error.value).endswith(f"snakemake --profile profiles/local {files} {links}")
    config = folder / "config" / "config.yaml"
    config.write_text(config.read_text().replace("site: local", "site: elsewhere"))
    make.write_site(folder / "results", make.profile(), None)
    output = " ".join(run(recommend, *CELL).output.split())
    command = f"snakemake --profile profiles/local {links} --config site=local"
    assert output.endswith(f"Make what is missing with: {command}")


def test_a_noisy_profile_is_told_with_the_range_of_its_steps(tmp_path, monkeypatch):
    quiet = make.profile()
    steps = [
        {**entry, "interval_s": [0.8 * entry["step_s"], 1.2 * entry["step_s"]]}
        for entry in quiet["steps"]
    ]
    make.write_site(tmp_path / "results", {**quiet, "steps": steps}, make.links())
    monkeypatch.chdir(tmp_path)
    for out in (run(predict, *CELL, "--strategy", "gpipe").output, run(recommend, *CELL).output):
        assert "The profile is noisy: one device's step lies between 208-312 ms." in out
        profile = "results/local/profiles/mnist/vgg11/fp32-1t/profile.json"
        assert f"snakemake --profile profiles/local --force {profile}" in " ".join(out.split())


def test_calibration_learns_from_measured_cells_and_changes_predictions(folder):
    config = folder / "experiment.yaml"
    config.write_text(
        "experiment: trial\nsite: local\n"
        "matrix: {dataset: [mnist], network: [vgg11], strategy: [ddp],"
        " geometry: [1x2, 1x4], batch_size: [16, 32]}\n"
    )
    with pytest.raises(ConfigError, match="no strategy has three measured configurations"):
        run(calibrate, "--configfile", str(config))
    before = json.loads(run(predict, *CELL, "--strategy", "ddp", "--json").output)
    for geometry, batch_size in itertools.product(("1x2", "1x4"), (16, 32)):
        write_ok(folder / "results", make.cell("ddp", geometry, batch_size), 1.0)
    chosen = run(calibrate, "--configfile", str(config), "--choose", "2", "--json").output
    assert len(json.loads(chosen)) == 2
    assert "measured" in run(calibrate, "--configfile", str(config), "--choose", "2").output
    table = run(calibrate, "--configfile", str(config)).output
    assert table.splitlines()[0].split()[:3] == ["strategy", "n", "before"]
    after = json.loads(run(predict, *CELL, "--strategy", "ddp", "--json").output)
    steps = [answer["predictions"][0]["step_s"] for answer in (before, after)]
    assert abs(steps[1] - 1.0) < abs(steps[0] - 1.0)
    assert "by cells measured here" in run(predict, *CELL, "--strategy", "ddp").output
    assert "calibrated by 4 cells" in run(predict, *CELL, "--strategy", "ddp").output
