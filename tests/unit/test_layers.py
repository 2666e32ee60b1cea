"""Which folder may import which; no circle of files; what a login node runs needs no torch.

::

    common -- experiment -- networks -- datasets ---------.
                  |            |                           |
                  |         strategies ------------------ runtime -- profiling, interconnect --
                  |            |   slurm, emulation --------'        cluster, equivalence -- testing
                  '-- planning +-- predict -- report -- commands, workflow
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx
import pytest

import ddlbench

ROOT = Path(ddlbench.__file__).parent

# A folder and those below it that it may import. Each may import itself, the package's root and
# common, which knows nothing of training.
BELOW = {
    "common": set(),
    "experiment": set(),
    "slurm": {"experiment"},
    "emulation": {"experiment"},
    "networks": {"experiment", "planning"},
    "datasets": {"experiment", "networks"},
    "planning": {"experiment"},
    "strategies": {"experiment", "networks", "planning"},
    "runtime": {
        "experiment",
        "slurm",
        "emulation",
        "datasets",
        "networks",
        "planning",
        "strategies",
    },
    "profiling": {"experiment", "datasets", "networks", "planning", "strategies", "runtime"},
    "interconnect": {"experiment", "networks", "planning", "strategies", "runtime"},
    "cluster": {"experiment", "slurm", "planning", "runtime", "interconnect"},
    "predict": {"experiment", "planning", "strategies"},
    "report": {"experiment", "slurm", "planning", "strategies", "predict"},
    "commands": {
        "experiment",
        "planning",
        "predict",
        "report",
        "interconnect",
        "emulation",
        "equivalence",
        "cluster",
    },
    "workflow": {
        "experiment",
        "slurm",
        "planning",
        "report",
        "interconnect",
        "cluster",
    },
    "equivalence": {"experiment", "networks", "planning", "strategies", "runtime"},
    "testing": {"experiment", "networks", "planning", "strategies", "runtime", "equivalence"},
}
# What plans, predicts and draws on a login node.
WITHOUT_TORCH = (
    "common",
    "experiment",
    "slurm",
    "planning",
    "predict",
    "report",
    "commands",
)
# Each starts with every cell or link test, where torch would take seconds.
LIGHT = (
    "ddlbench.runtime.supervise",
    "ddlbench.runtime.staging",
    "ddlbench.runtime.rank_guard",
    "ddlbench.datasets.imagefolder",
    "ddlbench.interconnect.measure",
)


def module_of(path: Path) -> str:
    parts = ["ddlbench", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def folder_of(module: str) -> str:
    """The folder below the package; empty for its own modules."""
    path = MODULES[module].relative_to(ROOT)
    return path.parts[0] if len(path.parts) > 1 else ""


def imports(node: ast.AST, *, within: bool = False, typed: bool = False) -> Iterator[str]:
    """Names of modules that are imported.

    Args:
        node: of a module's text.
        within: those within functions, too.
        typed: those that only a type checker reads, too.
    """
    for child in ast.iter_child_nodes(node):
        type_checking = isinstance(child, ast.If) and getattr(child.test, "id", "")
        if type_checking == "TYPE_CHECKING" and not typed:
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not within:
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield whole if whole in MODULES else child.module
        yield from imports(child, within=within, typed=typed)


@cache
def imported(module: str, within: bool = False, typed: bool = False) -> frozenset[str]:
    tree = ast.parse(MODULES[module].read_text())
    return frozenset(imports(tree, within=within, typed=typed))


def test_every_folder_has_its_place():
    assert {folder_of(module) for module in MODULES} - {""} == set(BELOW)


def test_the_folders_form_no_circle():
    assert networkx.is_directed_acyclic_graph(networkx.DiGraph(BELOW))


@pytest.mark.parametrize("folder", BELOW)
def test_a_folder_imports_only_those_below_it(folder):
    wrong = [
        f"{module} imports {other}"
        for module in MODULES
        if folder_of(module) == folder
        for other in imported(module, within=True)
        if other in MODULES and folder_of(other) not in {"", "common", folder, *BELOW[folder]}
    ]
    assert not wrong


def test_no_files_import_each_other_in_a_circle():
    graph = networkx.DiGraph(
        (module, other)
        for module in MODULES
        for other in imported(module, within=True, typed=True)
        if other in MODULES and other != module
    )
    # A package and what it gathers from its own modules is no circle of files.
    circles = [c for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles


def test_a_login_node_and_the_supervisor_of_a_cell_need_no_torch():
    modules = [
        module
        for module in MODULES
        if folder_of(module) in WITHOUT_TORCH or module in LIGHT or module.endswith(".descriptor")
    ]
    code = (
        "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]\n"
        "print({'torch', 'torchvision', 'torchgpipe', 'horovod'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code, *modules]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


def test_a_job_that_measures_imports_nothing_that_draws_or_counts():
    """Each job reads the Snakefile; pandas and matplotlib would take longer than all the rest."""
    code = "import sys, ddlbench.workflow.run; print({'pandas', 'matplotlib'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
