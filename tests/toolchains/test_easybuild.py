"""EasyBuild parses our easyconfig, approves its style and has every dependency; none is missing."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
(EASYCONFIG,) = (ROOT / "envs/easybuild").glob("*.eb")

# Runs in EasyBuild's environment: no module is installed, and no modules tool is needed.
CHECK = """
import json, sys, tempfile
from easybuild.framework.easyconfig.style import check_easyconfigs_style
from easybuild.framework.easyconfig.tools import parse_easyconfigs
from easybuild.tools.config import ConfigurationVariables
from easybuild.tools.modules import NoModulesTool
from easybuild.tools.options import set_up_configuration
from easybuild.tools.robot import resolve_dependencies

class NothingInstalled(NoModulesTool):
    def available(self, *args, **kwargs):
        return []
    def exist(self, names, *args, **kwargs):
        return [False] * len(names)

path, out = sys.argv[1:]
as_root = "--allow-use-as-root-and-accept-consequences"
syntax = ["--module-syntax=Tcl", "--modules-tool=EnvironmentModules"]
prefix = ["--prefix", tempfile.mkdtemp()]
set_up_configuration([as_root, "--ignore-osdeps", *syntax, *prefix], silent=True)
ConfigurationVariables()._FrozenDict__dict["modules_tool"] = "NoModulesTool"
parsed, _ = parse_easyconfigs([(path, False)], validate=False)
found = {}
order = resolve_dependencies(parsed, NothingInstalled(testing=True), raise_error_missing_ecs=True)
for one in order:
    ec = one["ec"]
    with ec.disable_templating():
        found[ec["name"]] = ec["version"]
        for extension in ec["exts_list"] or []:
            if isinstance(extension, (list, tuple)):
                found[extension[0]] = extension[1]
json.dump({"style": check_easyconfigs_style([path]), "found": found}, open(out, "w"))
"""


def test_the_easyconfig_supplies_what_pyproject_asks_for(tool, tmp_path):
    python, out = tool("easybuild") / "python", tmp_path / "found.json"
    command = [python, "-c", CHECK, EASYCONFIG, out]
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert out.is_file(), done.stdout + done.stderr
    answer = json.loads(out.read_text(encoding="utf-8"))
    assert answer["style"] == 0, done.stdout
    actual = {canonicalize_name(name): version for name, version in answer["found"].items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [Requirement(text) for text in project["dependencies"]]
    requirements += [Requirement(text) for text in project["optional-dependencies"]["measure"]]
    missing = {
        str(requirement): actual.get(canonicalize_name(requirement.name))
        for requirement in requirements
        if not requirement.specifier.contains(actual.get(canonicalize_name(requirement.name), "0"))
    }
    assert missing == {}


def test_its_name_is_that_of_the_version():
    version = re.search(
        r'__version__ = "(.+)"', (ROOT / "src/ddlbench/__init__.py").read_text(encoding="utf-8")
    )
    assert version is not None
    assert EASYCONFIG.name.startswith(f"ddlbench-{version[1]}-")
