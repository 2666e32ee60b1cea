"""Two trees of made-up results, compared by the command: verdicts, partners, wrong input."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result
from figure_checks import of

from ddlbench import cli
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import result_file
from ddlbench.report.figures.ratios import draw
from ddlbench.report.regressions import SPREAD_COMPUTED, SPREAD_EMULATED, compare_trees
from ddlbench.report.run_trees import read_tree
from ddlbench.report.style import style

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = json.loads((ROOT / "tests/unit/experiment/result.json").read_text("utf-8"))
FIRST = Cell.from_id(EXAMPLE["cell_id"])
SPREAD = 0.002
Tree = Callable[..., Path]


def write_run(
    tree: Path, cell: Cell, step_s: float, *, site: str = "local", **changes: Any
) -> Path:
    """The result of the example with steps so long, which differ by 1 %."""
    values = json.loads(json.dumps(EXAMPLE))
    values["timing"]["step_s"] |= {
        **dict.fromkeys(("median_s", "mean_s", "p95_s", "p99_s"), step_s),
        **{"low_s": step_s * 0.995, "high_s": step_s * 1.005},
    }
    values.update(cell_id=cell.id, cell=cell.to_dict(), site=site, **changes)
    values["provenance"]["created"] = f"2031-01-01T00:00:00+00:00 {tree.name}"
    path = result_file(site, cell.id, tree)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.fixture
def tree(tmp_path) -> Tree:
    """Writes a tree: three strategies, so many times as long as usual, so many repeats."""

    def write(name: str, slower: dict[str, float] | None = None, repeats: int = 3) -> Path:
        folder = tmp_path / name
        for strategy in ("ddp", "fsdp", "horovod"):
            for repeat in range(repeats):
                factor = (slower or {}).get(strategy, 1.0)
                jitter = 1 + SPREAD * ((repeat * 7 + len(strategy)) % 3 - 1)
                cell = FIRST.with_(strategy=strategy, repeat=repeat)
                write_run(folder, cell, 0.1 * factor * jitter)
        return folder

    return write


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.commands, [str(argument) for argument in arguments])


def compared(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """The JSON of a comparison, rows by strategy."""
    ended = call("compare", *arguments, "--json")
    assert ended.exit_code == exit_code, ended.output
    values = json.loads(ended.stdout)
    values["rows"] = {row["configuration"].split("/")[2]: row for row in values["configurations"]}
    return values


def refused(*arguments: object) -> str:
    ended = call(*arguments)
    assert isinstance(ended.exception, ConfigError), ended.output
    text = str(ended.exception)
    assert "\n" not in text
    return text


def test_a_slower_configuration_fails_the_comparison_and_stands_first(tree):
    values = compared(tree("a"), tree("b", {"fsdp": 1.1}), exit_code=1)
    assert values["configurations"][0]["verdict"] == "slower"
    row = values["rows"]["fsdp"]
    assert row["low"] <= 1.1 <= row["high"]
    assert {values["rows"][name]["verdict"] for name in ("ddp", "horovod")} == {"same"}


def test_the_other_way_round_it_is_faster_and_no_regression(tree):
    values = compared(tree("b", {"fsdp": 1.1}), tree("a"))
    assert values["rows"]["fsdp"]["verdict"] == "faster"
    assert values["regressions"] == 0


def test_a_hundredth_is_within_the_margin_and_beyond_a_smaller_one(tree):
    a, b = tree("a"), tree("b", {"fsdp": 1.02})
    assert compared(a, b)["rows"]["fsdp"]["verdict"] == "same"
    wide = compared(a, b, "--fail-over", "1%", exit_code=1)
    assert wide["rows"]["fsdp"]["verdict"] == "slower"


def test_one_run_each_is_widened_by_a_stated_spread(tree):
    a, b = tree("a", repeats=1), tree("b", {"fsdp": 1.1}, repeats=1)
    values = compared(a, b)
    assert values["rows"]["fsdp"]["verdict"] == "cannot tell"
    assert values["rows"]["fsdp"]["interval_from"] == "stated"
    assert compared(a, b, "--spread", "0.5%", exit_code=1)["rows"]["fsdp"]["verdict"] == "slower"


def test_a_tree_against_itself_and_its_copy_is_the_same(tree, tmp_path):
    a = tree("a", repeats=1)
    shutil.copytree(a, tmp_path / "copy")
    for other in (a, tmp_path / "copy"):
        values = compared(a, other)
        assert values["counts"] == {"same": 3}
        assert values["median_ratio"] == 1


def test_copies_of_a_run_are_no_repeats(tree, tmp_path):
    a = tree("a")
    both = tmp_path / "both"
    shutil.copytree(a, both / "one")
    shutil.copytree(a, both / "two")
    assert compared(both, a)["rows"]["ddp"]["a_runs"] == 3


@pytest.mark.parametrize("whole", [True, False])
def test_a_cell_that_fails_in_b_only_is_a_regression_with_its_reason(tree, whole):
    a, b = tree("a"), tree("b")
    for repeat in range(3 if whole else 1):
        path = result_file("local", FIRST.with_(strategy="fsdp", repeat=repeat).id, b)
        failed = {**json.loads(path.read_text()), "status": "out_of_memory", "timing": None}
        path.write_text(json.dumps({**failed, "reason": "rank 0 needed 3 GB more"}))
    row = compared(a, b, exit_code=1)["rows"]["fsdp"]
    assert row["verdict"] == "failed"
    assert "rank 0 needed 3 GB more" in row["reason"]
    assert (row["ratio"] is None) == whole
    assert "rank 0 needed 3 GB more" in " ".join(call("compare", a, b).output.split())
    assert compared(b, a)["regressions"] == 0


def test_a_failure_without_result_counts_and_a_damaged_result_too(tree):
    a, b = tree("a"), tree("b")
    for repeat in range(3):
        fsdp = result_file("local", FIRST.with_(strategy="fsdp", repeat=repeat).id, b)
        fsdp.unlink()
        failure = {"cell_id": FIRST.with_(strategy="fsdp", repeat=repeat).id, "reason": "boom"}
        fsdp.with_name("failure.json").write_text(json.dumps(failure))
        ddp = result_file("local", FIRST.with_(strategy="ddp", repeat=repeat).id, b)
        ddp.write_text(ddp.read_text()[:300])
    rows = compared(a, b, exit_code=1)["rows"]
    assert rows["fsdp"]["reason"] == "failed: boom"
    assert "result.json cannot be used" in rows["ddp"]["reason"]
    assert rows["horovod"]["verdict"] == "same"


def test_a_disturbed_run_has_no_ratio(tree):
    a, b = tree("a", repeats=1), tree("b", repeats=1)
    path = result_file("local", FIRST.with_(strategy="fsdp").id, b)
    values = json.loads(path.read_text())
    values["timing"]["disturbed"] = "rank 1 stood still for 9 s"
    path.write_text(json.dumps(values))
    row = compared(a, b)["rows"]["fsdp"]
    assert row["verdict"] == "cannot tell"
    assert "rank 1 stood still" in row["reason"]


def test_cells_without_a_partner_are_named_and_may_fail_the_comparison(tree):
    a, b = tree("a"), tree("b")
    shutil.rmtree(b / "local/cells/cifar10/vgg11/fsdp")
    write_run(b, FIRST.with_(strategy="fsdp", batch_size=32), 0.2)
    values = compared(a, b)
    assert [len(values[f"only_in_{side}"]) for side in "ab"] == [1, 1]
    assert "only in batch_size" in values["hint"]
    text = " ".join(call("compare", a, b).output.split())
    assert "Without a partner: 1 of A" in text
    strict = compared(a, b, "--require-all", exit_code=1)
    assert strict["rows"]["fsdp"]["verdict"] == "missing"
    crossed = compared(a, b, "--across", "batch_size", exit_code=0)
    assert crossed["rows"]["fsdp"]["ratio"] == pytest.approx(1.0, rel=0.01)  # of a sample


def test_one_site_each_is_compared_and_of_several_sites_those_of_one_name(tree, tmp_path):
    a, b = tree("a"), tmp_path / "b"
    shutil.copytree(a / "local", b / "local")
    for path in b.rglob("result.json"):
        path.write_text(path.read_text().replace('"site": "local"', '"site": "elsewhere"'))
    assert len(compared(a, b)["rows"]) == 3
    assert any("elsewhere" in note for note in compared(a, b)["notes"])
    write_run(a, FIRST, 0.3, site="third")
    assert "--across site" in refused("compare", a, b)
    assert "holds both site=" in refused("compare", a, b, "--across", "site")


def test_a_site_whose_folder_was_renamed_is_compared(tree):
    a, b = tree("a"), tree("b")
    (b / "local").rename(b / "before")
    assert {row["verdict"] for row in compared(a, b)["rows"].values()} == {"same"}
    assert len(compared(a, b / "before")["rows"]) == 3


def test_settings_that_need_not_match_are_both_named(tree, tmp_path):
    a, b = tree("a"), tmp_path / "b"
    for repeat in range(3):
        write_run(b, FIRST.with_(strategy="fsdp", precision="bf16", repeat=repeat), 0.05)
    values = compared(a, b, "--across", "precision")
    assert values["rows"]["fsdp"]["verdict"] == "faster"
    assert "precision=bf16" in values["rows"]["fsdp"]["b_configuration"]
    assert "precision=bf16" in call("compare", a, b, "--across", "precision").output
    assert "--across precision" in refused("compare", a, b)


def test_what_failed_in_both_is_no_news(tree):
    a, b = tree("a", repeats=1), tree("b", repeats=1)
    for side in (a, b):
        path = result_file("local", FIRST.with_(strategy="fsdp").id, side)
        failed = {**json.loads(path.read_text()), "status": "unsupported", "timing": None}
        path.write_text(json.dumps({**failed, "reason": "needs more devices"}))
    assert compared(a, b)["rows"]["fsdp"]["verdict"] == "failed in both"
    text = call("compare", a, b).output
    assert "failed in both" in text
    assert "needs more devices" not in text


def test_emulated_and_computed_cells_have_no_ratio(tree):
    a, b = tree("a"), tree("b")
    for path in b.rglob("result.json"):
        values = json.loads(path.read_text())
        values["accelerator"] = {"profiles": "one-core", "slow_down": 1.0, "shrink": 1.0}
        path.write_text(json.dumps(values))
    assert compared(a, b)["counts"] == {"cannot tell": 3}


def test_a_reference_file_takes_the_place_of_its_tree(tree, tmp_path):
    a, b, kept = tree("a"), tree("b", {"fsdp": 1.1}), tmp_path / "reference.yaml"
    assert call("report", "reference", a, "--out", kept).exit_code == 0
    of_file, of_tree = compared(kept, b, exit_code=1), compared(a, b, exit_code=1)
    for name, row in of_tree["rows"].items():
        assert of_file["rows"][name]["verdict"] == row["verdict"]
        assert of_file["rows"][name]["low"] == pytest.approx(row["low"], rel=1e-4)
    assert compared(kept, a)["counts"] == {"same": 3}
    assert compared(b, kept)["rows"]["fsdp"]["verdict"] == "faster"
    assert "--overwrite" in refused("report", "reference", a, "--out", kept)
    assert "ends in .yaml" in refused(
        "report", "reference", a, "--out", tmp_path / "reference.json"
    )
    row = yaml.safe_load(kept.read_text())["configurations"][0]
    assert row["runs"] == 3
    assert row["spread"] == pytest.approx(SPREAD, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("step_s:", "step:", "or 'step_s'"),
        ("step_s: 0.1", "step_s: fast", "is not a number"),
        ("step_s: 0.1", "step_s: .nan", "is not a number"),
        ("step_s: 0.1", "step_s: -1", "is too small"),
        ("status: ok", "status: fine", "'fine' is not allowed"),
        ("status: ok", "status: timeout", "so it has no step_s"),
        ("runs: 3", "runs: 1", "one run has no spread"),
        ("runs: 3", "runs: 2.5", "is not a whole number"),
        ("/vgg11/fsdp/", "/vgg11/ddp/", "is there 2 times"),
        ("cifar10/vgg11/fsdp/", "cifar10/", "is not a cell"),
        ("configurations:", "configuration:", "is no reference file"),
        ("complete: true\n", "", "was cut"),
        ("complete: true", "complete: no", "complete"),
        ("schema_version: 1", "schema_version: 7", "schema_version"),
    ],
)
def test_a_mistake_in_a_reference_file_is_one_sentence(tree, tmp_path, old, new, says):
    a, kept = tree("a"), tmp_path / "reference.yaml"
    call("report", "reference", a, "--out", kept)
    text = kept.read_text()
    assert old in text
    kept.write_text(text.replace(old, new, 1))
    assert says in refused("compare", kept, a)
    kept.write_text(text[: len(text) // 2])
    refused("compare", kept, a)


@pytest.mark.parametrize("text", ["5", "-1", "abc", "", "0", "0%", "100%", "nan", "inf", "5 %%"])
def test_a_margin_that_is_no_share_is_refused(tree, text):
    a = tree("a", repeats=1)
    assert "--fail-over" in refused("compare", a, a, f"--fail-over={text}")


def test_shares_and_percentages_are_the_same(tree):
    a, b = tree("a"), tree("b")
    margins = [compared(a, b, "--fail-over", text)["margin"] for text in ("5%", "0.05", "5 %")]
    assert margins == [0.05] * 3


def test_what_holds_no_results_is_refused(tree, tmp_path):
    a = tree("a", repeats=1)
    (tmp_path / "empty").mkdir()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "result.json").write_text('{"accuracy": 1}')
    nothing = tmp_path / "nothing.yaml"
    nothing.touch()
    assert "holds no result.json" in refused("compare", tmp_path / "empty", a)
    assert "does not exist" in refused("compare", a, tmp_path / "nowhere")
    assert "holds no other result" in refused("compare", a, foreign)
    assert "is empty" in refused("compare", a, nothing)
    assert "did you mean 'precision'" in refused("compare", a, a, "--across", "precison")
    assert "holds both" in refused("compare", a, a, "--across", "strategy")


def test_a_single_result_and_a_folder_below_are_trees(tree):
    a, b = tree("a"), tree("b")
    only = compared(a / "local/cells/cifar10/vgg11/fsdp", b)
    assert [*only["rows"]] == ["fsdp"]
    path = next(iter(sorted(b.rglob("result.json"))))
    assert compared(a, path)["configurations"][0]["b_runs"] == 1


def test_links_in_a_circle_end(tree):
    a = tree("a")
    (a / "again").symlink_to(a)
    assert len(read_tree(a).configurations) == 3


def test_markdown_folds_what_did_not_change(tree):
    ended = call("compare", tree("a"), tree("b", {"fsdp": 1.1}), "--markdown")
    assert ended.exit_code == 1
    head, folded = ended.output.split("<details>")
    assert head.startswith("**1 regression.**")
    assert "**slower**" in head
    assert "horovod" in folded


def test_a_name_that_results_bring_controls_no_terminal(tree):
    a, b = tree("a"), tree("b")
    for path in b.rglob("result.json"):
        values = json.loads(path.read_text())
        values["provenance"]["hosts"] = ["\x1b[31mnode"]
        for rank in values["ranks"]:
            rank["host"] = "\x1b[31mnode"
        path.write_text(json.dumps(values))
    for options in ([], ["--markdown"]):
        output = call("compare", a, b, *options).output
        assert "different kinds of hosts" in " ".join(output.split())
        assert all(line.isprintable() for line in output.splitlines())


def test_every_line_fits_a_terminal(tree):
    for line in call("compare", tree("a"), tree("b", {"fsdp": 1.1})).output.splitlines():
        assert len(line) <= 80 or " " not in line


def test_the_figure_has_a_row_a_configuration(tree, tmp_path):
    png = tmp_path / "figures" / "ratios.png"
    call("compare", tree("a"), tree("b", {"fsdp": 1.1}), "--figure", png)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(png.with_suffix(".csv"))) == 3
    assert "ends in .png" in refused("compare", tree("a"), tree("b"), "--figure", "ratios.txt")


def test_a_ratio_beyond_the_axis_is_a_mark_at_its_edge(tree):
    trees = [read_tree(tree("a")), read_tree(tree("b", {"fsdp": 40.0, "ddp": 0.01}))]
    with style():
        figure, _ = draw(compare_trees(*trees))
        figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    marks = {line.get_marker(): float(line.get_xdata()[0]) for line in axes.lines}
    assert marks["<"] == low
    assert marks[">"] == high
    assert low < marks["o"] < high
    words = " ".join(text.get_text() for text in of(figure, "footer"))
    assert "Triangles at the edges" in words


def test_the_stated_spreads_are_those_of_the_kept_cells():
    """Of repeats that the repository keeps; another table may be added, so roughly."""
    actual: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for file in (ROOT / "docs" / "papers").glob("*/cells.csv"):
        cells = pd.read_csv(file)
        cells = cells[(cells["status"] == "ok") & cells["step_median_s"].notna()]
        cells = cells.assign(of=cells["cell_id"].str.replace(r"/rep\d+$", "", regex=True))
        for _, runs in cells.groupby(["site", "of"]):
            if len(runs) > 1:
                logs = runs["step_median_s"].map(math.log)
                actual[bool(runs["emulated"].iloc[0])].append((logs.var(), len(runs) - 1))
    for emulated, stated in ((True, SPREAD_EMULATED), (False, SPREAD_COMPUTED)):
        freedom = sum(degrees for _, degrees in actual[emulated])
        pooled = sum(variance * degrees for variance, degrees in actual[emulated]) / freedom
        assert pooled**0.5 == pytest.approx(stated, rel=0.35)
