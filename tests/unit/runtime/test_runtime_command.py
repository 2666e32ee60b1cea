"""How Python is started: set-up commands run first, the container wraps the rest."""

import subprocess
import sys

import pytest
import yaml

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.site import load_site
from ddlbench.runtime.launch import python_command


def site(tmp_path, **keys):
    path = tmp_path / "here.yaml"
    path.write_text(yaml.safe_dump({"device": "cpu", "launcher": "local", **keys}))
    return load_site(str(path))


def output(command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_plain(tmp_path):
    assert python_command(site(tmp_path), "-m", "this") == [sys.executable, "-m", "this"]


def test_setup_commands_run_first_in_the_same_shell(tmp_path):
    here = site(tmp_path, setup=["module() { export LOADED=$2; }", "module load 'a b'"])
    command = python_command(here, "-c", "import os; print(os.environ['LOADED'])")
    assert output(command).stdout == "a b\n"


def test_a_setup_command_that_fails_starts_nothing(tmp_path):
    ended = output(python_command(site(tmp_path, setup=["false"]), "-c", "print('started')"))
    assert (ended.returncode, ended.stdout) == (1, "")


def test_container(tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGES", "/images")
    here = site(tmp_path, container={"image": "$IMAGES/ddl.sif"})
    assert python_command(here, "-m", "this") == [
        *("apptainer", "exec", "--nv", "/images/ddl.sif", "python3", "-m", "this")
    ]


def test_a_container_needs_an_image(tmp_path):
    with pytest.raises(ConfigError, match="image"):
        site(tmp_path, container={"program": "singularity"})
