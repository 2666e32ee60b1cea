"""Published figures: each file is an experiment at every scale, or a command."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from ddlbench.cli import commands
from ddlbench.commands.papers import command_of, on_a_cluster, papers_table, row_of
from ddlbench.commands.tables import TABLES
from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.config import (
    FULL,
    LAPTOP,
    PaperFile,
    at_scale,
    parse_experiment,
    read_paper,
    read_papers,
)
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import Site, load_site
from ddlbench.planning import matrix
from ddlbench.planning.budget import estimate
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.report.products import PredictionTables
from ddlbench.report.published import printed_table
from ddlbench.report.registry import figures_for, prediction_figures_for

ROOT = project_root()
FILES = {file.paper.figure: file for file in read_papers()}
WITH_CELLS = [name for name, file in FILES.items() if "experiment" in file.values]
ALONE = [name for name, file in FILES.items() if file.paper.command]
_FEW = 80  # cells of a laptop scale
_LONGEST_S = 3000  # of a laptop scale, where it is known before anything ran: sixteen GPUs
# Made of the results, but not by the workflow of one experiment on one site.
_BY_COMMAND = {"sites"}


@pytest.fixture(autouse=True)
def _every_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_missing_package", lambda *_: None)


@cache
def laptop_of(figure: str) -> tuple[Site, list[MatrixRow]]:
    experiment = parse_experiment({**FILES[figure].values, "scale": LAPTOP}, figure)
    site = load_site(experiment.site)
    if site.name == "local":  # two devices, wherever the tests run
        site = Site(**{**vars(site), "devices_per_node": 2})
    return site, expand(experiment, site)


@cache
def full_of(figure: str) -> list[MatrixRow]:
    file = FILES[figure]
    if (site := file.site(FULL)) is None:
        return on_a_cluster(file, FULL)[1]
    return expand(parse_experiment(file.values, figure), load_site(site))


def test_every_printed_figure_and_table_has_a_file() -> None:
    """The list is written down apart from the files, so that none is forgotten."""
    with (ROOT / "config" / "papers" / "contents.csv").open(encoding="utf-8") as file:
        printed = [row["item"] for row in csv.DictReader(file)]
    assert len(printed) == len(set(printed))
    assert set(printed) == FILES.keys()


def test_nothing_is_drawn_twice_or_without_a_reason() -> None:
    for figure, file in FILES.items():
        paper = file.paper
        ways = ("experiment" in file.values, paper.command, paper.table, paper.same_as)
        assert sum(map(bool, (*ways, paper.not_drawn))) == 1, figure
        if paper.same_as:
            assert not FILES[paper.same_as].paper.same_as, figure
        if paper.not_drawn:
            assert paper.not_drawn.endswith("."), figure
            assert not command_of(file, LAPTOP)


@pytest.mark.parametrize("figure", [name for name, file in FILES.items() if file.paper.table])
def test_printed_tables_stand_beside_ours(figure: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(commands, ["papers", figure, "--out", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    with next(tmp_path.glob("*.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert all(row["printed"] and row["here"] for row in rows)
    # Only the total of ImageNet departs; of the libraries, what is compared is words.
    departs = {(row["of"], row["quantity"]) for row in rows if row["printed"] != row["here"]}
    assert figure == "thesis/table3.1" or departs <= {("imagenet", "images")}


def test_table_1_counts_imagenet_s_training_images_alone() -> None:
    """E14: 1,281,167 and 50,000 are not 1,280,000."""
    spec = DATASETS["imagenet"]
    assert round(spec.num_train, -4) == 1_280_000 != round(spec.num_train + spec.num_val, -4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("of,quantity,printed\nmnist,classes,10\n", "has the columns of, quantity, printed; write"),
        ("of,quantity,printed,note\nmnst,classes,10,\n", "do not have .*mnst"),
        ("of,quantity,printed,note\nmnist,colour,10,\n", "datasets here do not have 'colour'"),
        ("", "cannot be read"),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        printed_table("datasets", path)
    with pytest.raises(ConfigError, match="did you mean 'datasets'"):
        printed_table("dataset", path)


def test_only_a_table_is_written_into_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--out: only for a printed table: write one of ddlbench"):
        CliRunner().invoke(
            commands, ["papers", "ddlbench/fig4", "--out", str(tmp_path)], catch_exceptions=False
        )


@pytest.mark.parametrize("figure", WITH_CELLS)
def test_full_scale_has_cells_that_a_cluster_can_run(figure: str) -> None:
    rows = full_of(figure)
    supported = [row for row in rows if row.unsupported is None]
    assert len(supported) / len(rows) > 0.9
    named = parse_experiment({**FILES[figure].values, "site": "mine"}, figure)
    assert named.name == figure.replace("/", "-")
    assert estimate(rows, load_site("slurm-example", as_example=True)).to_run == len(supported)


@pytest.mark.parametrize("figure", WITH_CELLS)
def test_laptop_scale_is_small_and_has_no_cell_in_vain(figure: str, tmp_path: Path) -> None:
    site, rows = laptop_of(figure)
    assert 2 <= len(rows) <= _FEW
    assert [row.unsupported for row in rows if row.unsupported is not None] == []
    cost = estimate(rows, site, tmp_path)
    assert cost.run_s_expected is None or cost.run_s_expected <= _LONGEST_S
    if figure != "thesis/table6.1":  # epochs of GPipe, without a speed-up
        assert cost.warnings == ()
    named = parse_experiment({**FILES[figure].values, "scale": LAPTOP}, figure)
    assert named.name == f"{figure.replace('/', '-')}-laptop"


@pytest.mark.parametrize("figure", WITH_CELLS)
def test_what_a_figure_names_is_drawn_of_its_cells(figure: str) -> None:
    draws, tables = (
        set(FILES[figure].paper.draws),
        {field.name for field in fields(PredictionTables)},
    )
    assert draws
    for scale, rows in ((FULL, full_of(figure)), (LAPTOP, laptop_of(figure)[1])):
        predicted = {*prediction_figures_for(rows), *tables}
        assert draws <= {*figures_for(rows), *predicted, *_BY_COMMAND}, scale
        config = {"site": "mine", **FILES[figure].values, "scale": scale}
        assert parse_experiment(config, figure).predict or not draws & predicted, scale


@pytest.mark.parametrize(
    "figure", [name for name in ALONE if "timeline" in FILES[name].paper.command]
)
def test_the_command_of_a_drawing_draws_it(figure: str, tmp_path: Path) -> None:
    words = shlex.split(FILES[figure].paper.command)
    out = words.index("--out") + 1
    assert words[out] == f"docs/papers/{figure.replace('/', '-')}"
    words[out] = str(tmp_path)
    ended = CliRunner().invoke(commands, words[1:], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    (table,) = tmp_path.glob("*.csv")
    devices = {row["place"] for row in csv.DictReader(table.open())}
    assert len(devices) == (5 if figure == "thesis/fig7.3" else 4)  # as printed


def test_the_drawings_are_the_printed_schedules() -> None:
    """DDLBench, Fig. 1 is model parallelism; Fig. 2 has three micro-batches."""
    drawn = {name: FILES[name].paper.command.split(" --") for name in ALONE}
    assert "schedule model-parallel" in drawn["ddlbench/fig1"]
    assert {"schedule gpipe", "micro-batches 3"} <= set(drawn["ddlbench/fig2"])
    assert {"schedule data-parallel", "replicas 4"} <= set(drawn["thesis/fig2.2"])
    assert {"replicas 3+2", "division"} <= set(drawn["thesis/fig7.3"])
    same = {name: file.paper.same_as for name, file in FILES.items() if file.paper.same_as}
    assert same["thesis/fig2.4"] == "ddlbench/fig1"
    assert same["thesis/fig2.5"] == "ddlbench/fig2"


def test_figure_4_asks_for_its_own_cells_only() -> None:
    rows = full_of("ddlbench/fig4")
    assert len(rows) == 4 * 6 * (1 + 3) * 3 == 288
    assert {row.cell.geometry for row in rows} == {"1x1", "1x4"}


def test_figure_5_has_model_parallelism_on_several_nodes() -> None:
    cells = {row.cell for row in full_of("ddlbench/fig5") if row.unsupported is None}
    geometries = {
        strategy: {cell.geometry for cell in cells if cell.strategy == strategy}
        for strategy in ("horovod", "pipedream", "model-parallel-p2p")
    }
    assert geometries == {
        "horovod": {"1x4", "2x4", "4x4"},
        "pipedream": {"1x4", "2x4", "4x4"},
        "model-parallel-p2p": {"1x4", "2x4"},
    }
    assert {cell.strategy for cell in cells} == {"sequential", *geometries}


def test_figure_6_is_of_two_sites_that_differ_in_their_devices_only() -> None:
    site, rows = laptop_of("ddlbench/fig6")
    half = load_site("emulated-16-gpus-half")
    assert site.name == "emulated-16-gpus"
    for row in rows:
        here, there = (each.fabrics.get(row.cell.fabric) for each in (site, half))
        if here is not None and there is not None:  # bundles last in proportion to slow_down
            there = replace(there, burst_s=here.burst_s)
        assert here == there
    assert half.accelerator is not None
    assert site.accelerator is not None
    assert half.accelerator.slow_down == 2 * site.accelerator.slow_down
    assert all(half.supports(row.cell) is None for row in rows)


def test_table_6_1_has_the_five_pairs() -> None:
    cells = [row.cell for row in full_of("thesis/table6.1")]
    assert Counter(
        (cell.batch_size, cell.option("chunks") or 4) for cell in cells
    ) == dict.fromkeys([(288, 12), (384, 12), (640, 20), (336, 28), (480, 30)], 3 * 3)


def test_paradl_s_batches_are_those_of_its_bars() -> None:
    names = {"data": "ddp", "data+filter": "data-filter", "data+spatial": "data-spatial"}
    cells = {
        (row.cell.network, row.cell.strategy, row.cell.devices, row.cell.batch_size)
        for row in full_of("paradl/fig1")
    }
    published = ROOT / "src" / "ddlbench" / "predict" / "paradl" / "published" / "measured.csv"
    bars = [row for row in csv.DictReader(published.open()) if row["campaign"] == "report"]
    assert len(bars) > 30
    for bar in bars:
        strategy = names.get(bar["strategy"], bar["strategy"])
        key = (bar["model"], strategy, int(bar["gpus"]), int(bar["batch_global"]))
        assert key in cells, bar["cell"]


def test_large_images_stay_large_on_a_laptop() -> None:
    for figure in WITH_CELLS:
        full = {row.cell.dataset for row in full_of(figure)}
        if figure.startswith("networking") and full == {"imagenet"}:
            assert {row.cell.dataset for row in laptop_of(figure)[1]} == {"imagenet"}, figure


@pytest.mark.parametrize("figure", WITH_CELLS)
def test_figures_share_the_cells_of_the_whole_experiment(figure: str) -> None:
    whole = FILES[figure].values.get("of")
    if whole is None or figure in ("thesis/fig6.1", "thesis/fig6.3", "thesis/table6.1"):
        return  # batches of their own
    path = ROOT / "config" / "experiments" / f"{whole}.yaml"
    experiment = parse_experiment(read_yaml(path), str(path))
    site = load_site(experiment.site, as_example=True)
    ids = {row.cell.id for row in expand(experiment, site)}
    assert {row.cell.id for row in full_of(figure)} <= ids


def test_a_scale_of_an_experiment_keeps_the_matrix_of_its_figure() -> None:
    """At laptop scale the networking study is what its figures show, and nothing else."""

    def cells(values: Mapping[str, Any]) -> set[tuple[str, ...]]:
        axes = ("dataset", "network", "strategy", "geometry", "batch_size", "fabric", "epochs")
        experiment = parse_experiment(values, "x")
        return {
            tuple(str(getattr(row.cell, axis)) for axis in axes)
            for row in expand(experiment, load_site(experiment.site))
        }

    shown = [
        cells({**file.values, "scale": LAPTOP})
        for figure, file in FILES.items()
        if figure.startswith("networking/") and not file.without_cells_why(LAPTOP)
    ]
    study = read_yaml(ROOT / "config" / "experiments" / "networking-gpus.yaml")
    assert set.union(*shown) == cells(study)


def test_a_site_of_the_user_goes_first() -> None:
    values = {**FILES["ddlbench/fig4"].values, "scale": LAPTOP}
    assert at_scale(values, "x")["site"] == "emulated-4-gpus"
    assert at_scale({**values, "site": "mine"}, "x")["site"] == "mine"
    assert at_scale({**values, "repeats": 5}, "x")["repeats"] == 5
    assert at_scale({**values, "scale": FULL, "site": "mine"}, "x")["site"] == "mine"


def test_a_scale_that_is_like_another_differs_in_what_it_says_only() -> None:
    """Pipelines of Figure 5 with and without a limit inside a node: other links, else alike."""

    def cells(scale: str) -> list[dict[str, Any]]:
        experiment = parse_experiment({**FILES["ddlbench/fig5"].values, "scale": scale}, "x")
        return [row.cell.to_dict() for row in expand(experiment, load_site(experiment.site))]

    limited, unlimited = cells(LAPTOP), cells("unlimited")
    assert {cell.pop("fabric") for cell in limited} == {"default", "eth40", "eth40-gloo"}
    assert {cell.pop("fabric") for cell in unlimited} == {"default", "eth40"}
    assert limited == unlimited


def test_sixteen_gpus_do_not_begin_on_this_machine() -> None:
    with pytest.raises(ConfigError, match=r"name yours: site=NAME .*, or write scale=laptop"):
        at_scale(FILES["ddlbench/fig5"].values, "x")


def test_other_experiments_stay_as_they_are() -> None:
    plain = {"experiment": "demo", "matrix": {}}
    assert at_scale(plain, "x") == plain
    with pytest.raises(ConfigError, match="of no published figure, so 'scale' means nothing here"):
        at_scale({**plain, "scale": LAPTOP}, "x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scale": "lap"}, "no scale 'lap'; did you mean 'laptop'"),
        ({"scales": {"laptop": 3}}, "scales"),
        ({"scale": "laptop", "scales": {"laptop": {"reason": "too large"}}},
         "no scale laptop: too large; write scale=full"),
        ({"paper": {"figure": "ddlbench/fig4"}}, "title"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(change, says) -> None:
    with pytest.raises(ConfigError, match=says):
        at_scale({**FILES["ddlbench/fig4"].values, **change}, "x")


def test_a_figure_without_cells_names_its_command() -> None:
    with pytest.raises(ConfigError, match="needs no cells; run: ddlbench report timeline"):
        at_scale(FILES["ddlbench/fig1"].values, "x")


def test_a_file_is_named_as_its_figure(tmp_path) -> None:
    path = tmp_path / "ddlbench" / "fig9.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(dict(FILES["ddlbench/fig4"].values)))
    with pytest.raises(ConfigError, match="write 'ddlbench/fig9'"):
        read_paper(path)


def test_the_command_lists_every_figure(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = CliRunner().invoke(commands, ["papers", "--json"])
    assert ended.exit_code == 0, ended.output
    rows = json.loads(ended.stdout)
    assert len(rows) == len(FILES)
    assert all(row["figure"] and row["title"] for row in rows)
    assert all(bool(row["command"]) != bool(row["not_drawn"]) for row in rows)
    assert {"cells", "cells_there", "expected_s", "scale"} <= rows[0].keys()
    fig4 = next(row for row in rows if row["figure"] == "ddlbench/fig4")
    assert fig4["command"] == (
        "snakemake --profile profiles/local --configfile config/papers/ddlbench/fig4.yaml "
        "--config scale=laptop"
    )
    assert fig4["cells"] == 12
    shown = CliRunner().invoke(commands, ["papers"]).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert [line.split()[0] for line in shown[1 : 1 + len(FILES)]] == list(FILES)  # a line each


def test_one_figure_is_told_in_full() -> None:
    ended = CliRunner().invoke(commands, ["papers", "thesis/table6.1"])
    assert ended.exit_code == 0, ended.output
    assert "Does a larger micro-batch help" in ended.output
    assert "of 10 are there on emulated-4-gpus" in " ".join(ended.output.split())
    with pytest.raises(ConfigError, match="did you mean 'thesis/table6.1'"):
        CliRunner().invoke(commands, ["papers", "thesis/table6"], catch_exceptions=False)


def test_full_scale_names_the_users_site() -> None:
    row = row_of(FILES["ddlbench/fig5"], FULL)
    assert row.command.endswith("--config site=YOUR_SITE")
    assert "profiles/slurm" in row.command
    assert (row.site, row.cells) == ("", 3 * 9 * 3)
    here = row_of(FILES["ddlbench/fig5"], FULL, "titan-rtx")
    assert (here.site, here.cells) == ("titan-rtx", row.cells)
    assert "profiles/local" in row_of(FILES["networking/fig2"], FULL).command


@pytest.mark.parametrize("given", [["--scale", "laptop"], ["--site", "titan-rtx"]])
def test_the_next_command_runs_what_was_planned(given: list[str], monkeypatch) -> None:
    """Else a plan of sixteen cells would be followed by a run of all that is published."""
    monkeypatch.setattr("ddlbench.commands.plan.is_here", lambda: False)
    file = "config/papers/ddlbench/fig4.yaml"
    ended = CliRunner().invoke(commands, ["plan", "--configfile", file, *given])
    assert ended.exit_code == 0, ended.exception
    output = " ".join(ended.output.split())
    assert f"--configfile {file} --config {given[0][2:]}={given[1]}" in output


@pytest.mark.parametrize(
    "words", ["plan", "status", "report", "status forget", "predict accuracy", "calibrate"]
)
def test_every_command_of_an_experiment_takes_a_scale(words: str) -> None:
    made = commands
    for word in words.split():
        made = made.get_command(click.Context(made), word)
    names = {option for parameter in made.params for option in parameter.opts}
    assert {"--configfile", "--site", "--scale"} <= names


def test_sites_are_compared_at_the_scale_that_was_asked_for(monkeypatch) -> None:
    compared = []

    def note(config, names, where):
        compared.append((parse_experiment({**config, "site": names[0]}, where).name, list(names)))
        return Path("sites.png")

    monkeypatch.setattr("ddlbench.report.products.compare_sites", note)
    monkeypatch.setattr("ddlbench.report.products.make_report", lambda *_: [])
    monkeypatch.setattr("ddlbench.commands.results.summary_lines", lambda *_, **__: [])
    monkeypatch.setattr("ddlbench.commands.results.advice_lines", lambda *_: [])
    file = "config/papers/ddlbench/fig6.yaml"
    words = [
        "report",
        "--configfile",
        file,
        "--scale",
        "laptop",
        "--also-site",
        "emulated-16-gpus-half",
    ]
    ended = CliRunner().invoke(commands, words, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert compared == [("ddlbench-fig6-laptop", ["emulated-16-gpus", "emulated-16-gpus-half"])]


def test_the_page_has_every_figure() -> None:
    rows = papers_table()
    assert all(f"\n{figure}," in rows for figure in FILES)
    (table,) = (entry for entry in TABLES if entry.path == "docs/papers/figures.csv")
    page = (ROOT / table.path).read_text("utf-8")
    assert table.text(page) == page, "python -m ddlbench.commands.tables writes it anew"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"published": ["thesis/fig3.9"]},
            "paper.published: no file is of 'thesis/fig3.9'; similar: thesis/",
        ),
        ({"pictures": ["x.png"]}, "pictures.0: 'x.png' does not fit"),
        (
            {"command": "ddlbench report timeline"},
            "write one of: an experiment, or for a figure without",
        ),
    ],
)
def test_a_file_that_points_nowhere_is_one_sentence(tmp_path, monkeypatch, change, says) -> None:
    folder = tmp_path / "config" / "papers"
    shutil.copytree(ROOT / "config" / "papers", folder)
    path = folder / "ddlbench" / "fig4.yaml"
    values = dict(FILES["ddlbench/fig4"].values)
    path.write_text(yaml.safe_dump({**values, "paper": {**values["paper"], **change}}))
    monkeypatch.setattr("ddlbench.experiment.paths.project_root", lambda: tmp_path)
    with pytest.raises(ConfigError, match=says):
        read_papers()


@pytest.mark.parametrize("scales", [{"small": {"like": "laptop"}}, {"laptop": {"like": "laptop"}}])
def test_a_scale_like_one_that_is_not_there_is_refused(scales: dict[str, Any]) -> None:
    values = read_yaml(next((project_root() / "config/papers/ddlbench").glob("fig5.yaml")))
    with pytest.raises(ConfigError, match="no scale laptop has keys of its own"):
        PaperFile.of_values({**values, "scales": scales}, "mine.yaml")
