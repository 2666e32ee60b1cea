"""Predictions are made when asked for, or when the experiment wants them.

That they are not made unasked shows in the jobs of test_workflow_runs.py.
"""

from __future__ import annotations

import re

import pytest


def jobs_of(text):
    """Rule -> jobs, from Snakemake's table."""
    table = text.partition("Job stats:\n")[2].partition("\n\n")[0]
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def planned(workflow, *arguments, **changes):
    config = workflow.experiment("predicted.yaml", **changes)
    ended = workflow.snakemake(*arguments, "-n", "--quiet", "rules", config=config)
    assert ended.code == 0, ended.text
    return jobs_of(ended.text)


PREDICTED = {"links_of_fabric": 1, "profile": 1, "predict": 1}


@pytest.mark.parametrize("wanted", ["asked", "configured"])
def test_predictions_need_cells_profiles_and_links(workflow, wanted):
    if wanted == "asked":
        jobs = planned(workflow, "predictions")
    else:
        jobs = planned(workflow, predict=True)
        assert jobs["figure"] == 6
    assert PREDICTED.items() <= jobs.items()
    assert jobs["cell"] == 3
    # accuracy, oracle, gpipe_step, and two of each of the three strategies
    assert jobs["prediction_figure"] == 9
