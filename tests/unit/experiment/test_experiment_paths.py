"""Paths of a site file, as a node reads them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import checkpoint_dir, expanded, project_file, scratch_dir


@pytest.fixture(autouse=True)
def _variables(monkeypatch, tmp_path):
    monkeypatch.setenv("THERE", str(tmp_path))
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("RELATIVE", "some/where")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("NOT_THERE", raising=False)


def test_variables_and_home_are_filled_in(tmp_path):
    assert scratch_dir("$THERE/data") == tmp_path / "data"
    assert scratch_dir("${THERE}") == tmp_path
    assert scratch_dir("~/data") == Path("/home/somebody/data")
    assert checkpoint_dir("$THERE", "s", "c", Path("cell")) == tmp_path / "s" / "c"
    assert checkpoint_dir(None, "s", "c", Path("cell")) == Path("cell/.checkpoint")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("$NOT_THERE", "$NOT_THERE is not set there"),
        ("/tmp/${NOT_THERE}/x", "$NOT_THERE is not set there"),
        ("$EMPTY/data", "$EMPTY is not set there"),  # would be /data
        ("$THERE/$NOT_THERE", "$NOT_THERE is not set there"),
        ("/tmp/$(id -u)", "it becomes '/tmp/$(id -u)', no plain absolute path"),
        ("data", "it becomes 'data', no plain absolute path"),
        ("$RELATIVE", "it becomes 'some/where', no plain absolute path"),
        ("~nobody-of-that-name/data", "no plain absolute path"),
    ],
)
@pytest.mark.parametrize("key", ["scratch", "checkpoints", "container.image"])
def test_no_folder_gets_the_name_of_a_variable(template, why, key):
    with pytest.raises(ConfigError) as caught:
        expanded(template, key)
    message = str(caught.value)
    assert message.startswith(f"{key}: {template!r} is no path on {socket.gethostname()}, as ")
    assert why in message
    assert "; write " in message
    assert "\n" not in message


@pytest.mark.parametrize("variable", ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"])
def test_a_scratch_that_the_image_does_not_show_is_named_with_the_remedy(
    variable, tmp_path, monkeypatch
):
    assert scratch_dir("/nowhere/at/all") == Path("/nowhere/at/all")
    monkeypatch.setenv(variable, "/a.sif")
    assert scratch_dir(str(tmp_path / "new")) == tmp_path / "new"  # it can be made
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert scratch_dir(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match=r"/a\.sif does not show .*'--bind, /nowhere/at/all'"):
        scratch_dir("/nowhere/at/all")


def test_a_file_of_the_project_is_short_where_the_project_is_entered(tmp_path, monkeypatch):
    (tmp_path / "Snakefile").touch()
    (tmp_path / "config" / "sites").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert project_file("config/sites/a.yaml") == Path("config/sites/a.yaml")
    assert project_file("/elsewhere/a.yaml") == Path("/elsewhere/a.yaml")
    monkeypatch.chdir(tmp_path / "config")
    assert project_file("config/a.yaml") == Path("a.yaml")
    assert project_file("results") == tmp_path / "results"
