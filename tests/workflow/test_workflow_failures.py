"""A cell that crashes stops nobody else, and runs again alone; one without memory is a result."""

from __future__ import annotations

import json

import pytest

CRASHED = ("tiny_networks@buggy", "ddp")
TOO_LARGE = ("tiny_networks@too_large", "ddp")


@pytest.fixture(scope="module")
def config(workflow):
    return workflow.experiment(
        matrix={
            "network": ["tiny_networks:buggy", "tiny_networks:too_large"],
            "strategy": ["sequential", "ddp"],
        },
        strategies={},
        exclude=[{"network": "tiny_networks:too_large", "strategy": "sequential"}],
    )


@pytest.fixture(scope="module")
def crashed(workflow, config):
    return workflow.snakemake(config=config)


@pytest.fixture(scope="module")
def fixed(workflow, config, crashed):
    """The run after the bug was fixed; also the results before it."""
    before = workflow.results()
    workflow.fixed.touch()
    return before, workflow.snakemake("cells", "tables", config=config)


def row(workflow, network, strategy):
    folder = workflow.cell(network, strategy)
    cell_id = folder.relative_to(workflow.folder / "results/box/cells").as_posix()
    return workflow.measurements()[cell_id]


def test_a_crash_fails_the_run_but_not_the_other_cells(workflow, crashed):
    assert crashed.code != 0
    assert workflow.result("tiny_networks@buggy", "sequential")["status"] == "ok"
    assert workflow.result(*TOO_LARGE)["status"] == "out_of_memory"
    assert not (workflow.cell(*CRASHED) / "result.json").exists()


def test_a_crash_says_why(workflow, crashed):
    failure = json.loads((workflow.cell(*CRASHED) / "failure.json").read_bytes())
    assert "a bug on the second worker" in failure["reason"]
    sentences = [line for line in crashed.text.splitlines() if line.startswith("ddlbench: ")]
    assert len(sentences) == 1, crashed.text
    assert "a bug on the second worker" in sentences[0]
    assert "Traceback" not in crashed.text
    assert "Traceback" in (workflow.cell(*CRASHED) / "log.txt").read_text(encoding="utf-8")


def test_the_run_that_failed_has_made_the_report_of_the_others(workflow, crashed):
    # Taken together by `crashed`, before `fixed`; tests run in order.
    failed = row(workflow, *CRASHED)
    assert failed["status"] == "failed"
    assert "a bug on the second worker" in failed["reason"]
    assert row(workflow, *TOO_LARGE)["status"] == "out_of_memory"
    assert row(workflow, "tiny_networks@buggy", "sequential")["status"] == "ok"
    assert {"speedup.png", "speedup.pdf", "memory.png", "steps.png"} <= workflow.figures()


def test_after_the_bug_is_fixed_only_that_cell_runs(workflow, fixed):
    before, ended = fixed
    assert ended.code == 0, ended.text
    assert ended.jobs["cell"] == 1
    after = workflow.results()
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 1
    assert row(workflow, *CRASHED)["status"] == "ok"
    assert not (workflow.cell(*CRASHED) / "failure.json").exists()


def test_out_of_memory_is_a_result_that_is_not_tried_again(workflow, config, fixed):
    assert row(workflow, *TOO_LARGE)["status"] == "out_of_memory"
    assert workflow.snakemake("cells", "tables", config=config).did_nothing
