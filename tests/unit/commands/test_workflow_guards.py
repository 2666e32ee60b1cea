"""What the workflow refuses before any job: an unfit profile, a second run on this machine."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import load_site
from ddlbench.workflow.guards import (
    check_config_files,
    check_profile,
    hold_machine,
    holds_machine,
)

HOLD = (
    "from ddlbench.experiment.site import load_site;"
    "from ddlbench.workflow.guards import hold_machine;"
)


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Profiles as Snakemake has them: by path, by name, of any version, in the environment."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    monkeypatch.setattr("snakemake.common.APPDIRS", None)  # it is kept from the first call on
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    local, slurm = "cores: 1\n", "executor: slurm\njobs: 1\n"
    for path, text in (
        ("local/config.yaml", local),
        ("slurm/config.yaml", slurm),
        ("eight/config.v8+.yaml", slurm),
        ("both/config.yaml", local),
        ("both/profile.v9+.yaml", slurm),
        ("home/snakemake/cluster/config.yaml", slurm),
        ("home/snakemake/desk/config.v8+.yaml", local),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "Snakefile").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("site", "arguments", "source"),
    [
        ("local", "--profile slurm", "slurm/config.yaml"),
        ("local", "--profile eight", "eight/config.v8+.yaml"),
        ("local", "--profile both", "both/profile.v9+.yaml"),
        ("local", "--profile cluster", "snakemake/cluster/config.yaml"),
        ("local", "--profile eight/config.v8+.yaml", "eight/config.v8+.yaml"),
        ("local", "--profile local --profile slurm", "slurm/config.yaml"),
        ("local", "--cores 1 --workflow-profile slurm", "slurm/config.yaml"),
        ("local", "--profile local --executor slurm --jobs 1", "your command"),
        ("local", "--profile slurm -e local --cores 1", None),
        ("local", "--profile local", None),
        ("local", "--profile desk", None),
        ("local", "--cores 1", None),
        ("slurm-example", "--profile local", "local/config.yaml"),
        ("slurm-example", "--profile desk", "snakemake/desk/config.v8+.yaml"),
        ("slurm-example", "--profile slurm -e local", "your command"),
        ("slurm-example", "--profile slurm", None),
        ("slurm-example", "--profile eight", None),
        ("slurm-example", "--profile cluster", None),
        ("slurm-example", "--profile local --workflow-profile slurm", None),
    ],
)
def test_a_profile_fits_the_site(profiles, site, arguments, source):
    words = ["-n", *arguments.split(), "--config", f"site={site}"]
    if source is None:
        check_profile(load_site(example(site), as_example=True), words)
        return
    does = "submits to SLURM" if site == "local" else "runs jobs on this machine"
    with pytest.raises(ConfigError, match=re.escape(f"{source} {does}")):
        check_profile(load_site(example(site), as_example=True), words)


def test_a_profile_may_be_named_in_the_environment(profiles, monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "slurm")
    check_profile(load_site(example("slurm-example"), as_example=True), ["-n"])
    with pytest.raises(ConfigError, match="slurm/config.yaml submits to SLURM"):
        check_profile(load_site(example("local")), ["-n"])
    check_profile(load_site(example("local")), ["-n", "--profile", "local"])


def test_the_default_profile_of_the_workflow_counts(profiles):
    (profiles / "profiles").mkdir()
    (profiles / "slurm").rename(profiles / "profiles" / "default")
    with pytest.raises(ConfigError, match="profiles/default/config.yaml submits to SLURM"):
        check_profile(load_site(example("local")), ["-n"])


def test_a_profile_is_seen_from_where_snakemake_was_started(profiles, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.chdir(elsewhere)  # as Snakemake does before it reads the rules
    words = ["-n", "--profile", "slurm", "--directory", "elsewhere"]
    with pytest.raises(ConfigError, match="submits to SLURM"):
        check_profile(load_site(example("local")), words)


def example(site):
    return str(project_root() / "config" / "sites" / f"{site}.yaml")


def test_inside_an_allocation_a_cluster_may_run_here(profiles, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    check_profile(
        load_site(example("slurm-example"), as_example=True), ["--profile", str(profiles / "local")]
    )


def test_a_second_run_on_this_machine_is_refused_until_the_first_ends(tmp_path, monkeypatch):
    site = load_site("local")
    monkeypatch.chdir(tmp_path)
    hold = f"{HOLD} import sys; site = load_site({str(site_file())!r}); hold_machine(site);"
    first = subprocess.Popen(
        [sys.executable, "-c", f"{hold} print('held', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {first.pid} measures on this machine already"):
        hold_machine(site)
    first.kill()
    first.wait()
    assert not holds_machine(site)
    hold_machine(site)  # the kernel has dropped the lock
    assert holds_machine(site)
    cluster = load_site("slurm-example", as_example=True)
    hold_machine(cluster)  # nothing is locked there
    assert holds_machine(cluster)


def site_file():
    return project_root() / "config" / "sites" / "local.yaml"


def test_a_target_behind_the_configuration_is_told_where_to_stand():
    check_config_files(["config/config.yaml", "mine.yaml"])
    with pytest.raises(ConfigError, match="write targets first: snakemake results/local/links/"):
        check_config_files(["mine.yaml", "results/local/links/default/links.json"])
