"""Both image recipes have one list of steps, and hold the parts of the project.

``try.sh`` builds and trains for real, for half an hour; here stand-ins note what it calls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "envs/containers"

PARSE = """
import json, sys
from dockerfile_parse import DockerfileParser
lines = DockerfileParser(fileobj=open(sys.argv[1], "rb")).structure
print(json.dumps([[each["instruction"], each["value"]] for each in lines]))
"""


def _definition() -> dict[str, str]:
    """Sections of the Apptainer definition; the header is section ``""``."""
    text = (RECIPES / "ddlbench.def").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    parts = re.split(r"^%(\w+)\n", "\n".join(lines), flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


def test_both_recipes_take_the_same_files_and_steps(tool):
    command = [tool("dockerfile") / "python", "-c", PARSE, RECIPES / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = json.loads(done.stdout)
    sections = _definition()
    copied = [words.split()[:-1] for kind, words in lines if kind == "COPY"]
    taken = [line.split() for line in sections["files"].splitlines() if line.strip()]
    assert all(target == "/opt/ddlbench/" for _, target in taken)
    assert sorted(name for names in copied for name in names) == sorted(name for name, _ in taken)
    assert all((ROOT / name).exists() for name, _ in taken)
    (run,) = [words for kind, words in lines if kind == "RUN"]
    assert run == 'bash envs/containers/install.sh "${TORCH}"'
    assert sections["post"].split() == [
        *("bash", "/opt/ddlbench/envs/containers/install.sh", "{{", "TORCH", "}}")
    ]
    # The same arguments with the same defaults.
    given = dict(words.split("=") for kind, words in lines if kind == "ARG")
    arguments = dict(line.strip().split("=") for line in sections["arguments"].splitlines() if line)
    assert given == {name: arguments[name] for name in ("BASE", "TORCH")}
    assert set(re.findall(r"{{ (\w+) }}", "".join(sections.values()))) == set(arguments)


def test_what_set_up_reads_is_in_the_image():
    """Each file and folder that set-up and the package's metadata name."""
    held = {line.split()[0] for line in _definition()["files"].splitlines() if line.strip()}
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "src", "plugins", "envs"} <= held
    # What an experiment inside the image needs.
    assert {"Snakefile", "rules", "workflow", "config", "profiles"} <= held


# A tool that notes its words. No registry answers; a container starts only in a plain chroot.
STAND_IN = """#!/bin/bash
echo "$(basename "$0") $*" >> "$NOTED"
case "$(basename "$0") $*" in
    "buildah pull "* | "apptainer pull "* | "buildah run c1 true") exit 1 ;;
    "buildah from "*) echo c1 ;;
    *"status"*"--json") cat "$STATES" ;;
    *" python3 -c "*) exec python3 "${@: -2}" ;;
    "debootstrap "*) mkdir -p "${@: -2:1}" ;;
    "apptainer build "*) touch "$DDLBENCH_IMAGE_WORK/ddlbench.sif" ;;
esac
"""


class Tools:
    """Stand-ins in a folder, and ``try.sh`` run with them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.noted = folder, folder / "noted"
        self.states = folder / "states.json"
        self.programs = folder / "bin"
        self.programs.mkdir()

    def add(self, *names: str) -> None:
        for name in names:
            path = self.programs / name
            path.write_text(STAND_IN)
            path.chmod(0o755)

    def cells(self, *states: str) -> None:
        """What ``ddlbench status --json`` prints in the image."""
        cell = {"strategy": "horovod", "geometry": "1x2", "reason": "it was not built"}
        self.states.write_text(json.dumps({"cells": [{**cell, "state": each} for each in states]}))

    def run(self, *arguments: str, binds: str = "") -> subprocess.CompletedProcess[str]:
        basic = [path for path in ("/bin", "/usr/bin") if Path(path).exists()]
        variables = {
            **{"NOTED": self.noted, "STATES": self.states, "DDLBENCH_IMAGE_BINDS": binds},
            **{"DDLBENCH_IMAGE_WORK": self.folder / "work", "DDLBENCH_ENV": self.folder / "none"},
            **{"PATH": os.pathsep.join([str(self.programs), *basic])},
        }
        return subprocess.run(
            ["bash", RECIPES / "try.sh", *arguments],
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def tools(tmp_path):
    return Tools(tmp_path)


def test_without_a_registry_buildah_builds_on_debootstrap_and_trains_inside(tools, tmp_path):
    tools.add("buildah", "debootstrap", "apptainer")
    tools.cells("ok", "ok")
    (tmp_path / "pip.conf").touch()
    run = tools.run("buildah", binds=f"{tmp_path}/pip.conf:/etc/pip.conf")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "isolation chroot; base: Debian 12 of debootstrap" in run.stdout
    assert "2 cells on this machine; not ok: none" in run.stdout
    assert "nothing was run from outside" in run.stdout
    lines = tools.noted.read_text().splitlines()
    (build,) = [line for line in lines if line.startswith("buildah build ")]
    assert "--isolation chroot" in build
    assert f"--volume {tmp_path}/pip.conf:/etc/pip.conf:ro" in build
    inside = [line.split(" -- ", 1)[1] for line in lines if " -- " in line]
    assert inside[0].startswith("snakemake --profile profiles/local --configfile config/exper")


def test_a_cell_that_the_image_cannot_train_fails_and_is_named(tools):
    tools.add("buildah", "debootstrap", "apptainer")
    tools.cells("ok", "unsupported")
    run = tools.run("buildah")
    assert run.returncode == 1
    assert "('horovod', 'unsupported', 'it was not built')" in run.stderr
    assert "inside failed" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "write which tool builds"),
        (("docker",), "write which tool builds"),
        (("buildah",), "buildah is not installed"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_built(tools, arguments, says):
    if Path("/usr/bin/buildah").exists() and "installed" in says:
        pytest.skip("buildah is installed here")
    run = tools.run(*arguments)
    assert run.returncode == 1
    assert says in run.stderr
    assert not (tools.folder / "work").exists()
