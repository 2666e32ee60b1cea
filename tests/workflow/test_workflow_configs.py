"""What is wrong in a configuration ends a run before any job, in one sentence."""

from __future__ import annotations

import re

import pytest
from workflow_project import PROJECT, SETTINGS

from ddlbench.common.schema import read_yaml
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand
from ddlbench.planning.profiles import profiles_of

exhaustive = pytest.mark.exhaustive
GPIPE_ON_TWO_NODES = {
    "dataset": "mnist",
    "network": "resnet18",
    "strategy": "gpipe",
    "geometry": "2x1",
    "batch_size": 8,
}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": {**SETTINGS, "epoks": 1}}, "'epoks' is not a key here"),
        ({"include": [GPIPE_ON_TWO_NODES]}, "gpipe cannot run this cell"),
        # Found as early as the first, and each has its sentence in the unit tests.
        pytest.param({"matrix": {"geometry": "1x2"}}, "is not a list", marks=exhaustive),
        pytest.param(
            *({"matrix": {"network": ["resnet19"]}}, "unknown network 'resnet19'"),
            marks=exhaustive,
        ),
        pytest.param({"settings": {**SETTINGS, "max_steps": -1}}, "-1 is too", marks=exhaustive),
    ],
    ids=["unknown key", "impossible cell", "wrong type", "unknown network", "negative count"],
)
def test_a_wrong_configuration_is_one_sentence_before_any_job(workflow, changes, sentence):
    config = workflow.experiment("wrong.yaml", **changes)
    ended = workflow.snakemake(config=config)
    assert ended.code != 0
    ours = [line for line in ended.text.splitlines() if "ddlbench: " in line]
    assert len(ours) == 1, ended.text
    assert ours[0].startswith("ddlbench: wrong.yaml: ")
    assert sentence in ours[0]
    # Beside it, Snakemake only says which profile it read.
    others = [line for line in ended.text.splitlines() if line and line not in ours]
    assert all("profile" in line for line in others), ended.text
    assert not (workflow.folder / "results").exists()


def test_plan_says_the_same_sentence_and_exits_with_2(workflow):
    config = workflow.experiment("wrong.yaml", settings={**SETTINGS, "epoks": 1})
    ended = workflow.ddlbench("plan", "--configfile", config)
    assert ended.code == 2
    assert ended.stdout == ""
    assert re.fullmatch(r"ddlbench: wrong\.yaml: settings: 'epoks' is not [^\n]+\n", ended.text)


def test_a_missing_site_is_one_sentence(workflow):
    ended = workflow.ddlbench("plan", "--configfile", workflow.experiment(), "--site", "boxx")
    assert ended.code == 2
    assert re.fullmatch(
        r"ddlbench: site 'boxx' has no file [^\n]+did you mean 'box'\?\n", ended.text
    )


def shipped():
    return ["config/config.yaml", *(f"config/experiments/{p.name}" for p in EXPERIMENTS)]


EXPERIMENTS = sorted((PROJECT / "config" / "experiments").glob("*.yaml"))
# Large, and of the same keys as ddlbench.yaml and networking-small.yaml.
LIKE_OTHERS = {
    f"config/experiments/{name}.yaml"
    for name in ("ddlbench-equal", "networking", "networking-gpus")
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in LIKE_OTHERS else [])
        for name in shipped()
    ],
)
def test_a_shipped_experiment_plans_the_jobs_of_its_matrix(workflow, name):
    values = read_yaml(PROJECT / name)
    experiment = parse_experiment(values, name)
    site = load_site(experiment.site, as_example=True)
    rows = expand(experiment, site)
    cells = [row.cell for row in rows if row.unsupported is None]
    if site.launcher == "slurm":
        pytest.importorskip("snakemake_executor_plugin_slurm")
    arguments, profile = ["-n", "--quiet", "rules"], "local"
    if site.launcher == "slurm":
        example = (PROJECT / "config" / "sites" / f"{site.name}.yaml").read_text(encoding="utf-8")
        mine = workflow.folder / "config" / "sites" / "mine.yaml"
        mine.write_text(example.replace("REPLACE_ME", "mine"), encoding="utf-8")
        arguments += ["--config", "site=mine"]
        profile = "slurm"
    ended = workflow.snakemake(*arguments, config=name, profile=profile)
    assert ended.code == 0, ended.text
    jobs = ended.jobs
    assert jobs.pop("figure") >= 3
    if experiment.predict:  # all but those that only show whether a machine works
        assert jobs.pop("prediction_figure") >= 3
        assert jobs.pop("profile") == len(profiles_of(rows))
        assert jobs.pop("links_of_fabric") == len({cell.fabric for cell in cells})
        assert jobs.pop("predict") == 1
    assert experiment.predict == (experiment.name not in ("smoke", "demo-gpus", "networking-gpus"))
    assert jobs == {"cell": len(cells), "tables": 1, "page": 1, "all": 1}


def test_a_home_that_cannot_be_written_is_no_obstacle(workflow, monkeypatch):
    monkeypatch.setitem(workflow.environment, "HOME", "/dev/null")
    monkeypatch.delitem(workflow.environment, "XDG_CACHE_HOME", raising=False)
    ended = workflow.snakemake("--dry-run", config=workflow.experiment())
    assert ended.code == 0, ended.text
    assert ended.jobs["cell"] == 3
