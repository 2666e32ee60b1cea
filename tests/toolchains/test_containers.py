"""Both image recipes have one list of steps, and hold the parts of the project."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

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
