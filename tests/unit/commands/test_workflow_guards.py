"""What the workflow refuses before any job: an unfit profile, a second run on this machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import load_site
from ddlbench.workflow import check_profile, hold_machine, holds_machine

HOLD = "from ddlbench.experiment.site import load_site; from ddlbench.workflow import hold_machine;"


@pytest.fixture
def profiles(tmp_path):
    for name, text in (("local", "cores: all\n"), ("slurm", "executor: slurm\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("site", "profile", "sentence"),
    [
        ("local", "slurm", "site local measures on this machine, but .* submits to SLURM"),
        ("slurm-example", "local", "site slurm-example is a SLURM cluster, but .* this machine"),
        ("local", "local", None),
        ("slurm-example", "slurm", None),
    ],
)
def test_a_profile_fits_the_site(profiles, monkeypatch, site, profile, sentence):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    arguments = ["-n", "--profile", str(profiles / profile), "--config", f"site={site}"]
    if sentence is None:
        check_profile(load_site(site, as_example=True), arguments)
    else:
        with pytest.raises(ConfigError, match=sentence):
            check_profile(load_site(site, as_example=True), arguments)


def test_inside_an_allocation_a_cluster_may_run_here(profiles, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    check_profile(
        load_site("slurm-example", as_example=True), ["--profile", str(profiles / "local")]
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
