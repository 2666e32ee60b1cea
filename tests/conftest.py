"""What all tests share."""

import gc
import os
import sys
import tempfile
from pathlib import Path

import plugged
import pytest
import shipped
from cases import fault_table
from hypothesis import settings

from ddlbench.common import entry_points
from ddlbench.experiment import registry
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.report.exports.registry import EXPORTS
from ddlbench.report.registry import FIGURES

# A shared machine may take its time: no test asserts on the wall clock.
settings.register_profile("few", deadline=None, max_examples=40)
settings.register_profile("many", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("DDLBENCH_EXAMPLES", "few"))

_HEADER = pytest.StashKey[str]()


def pytest_configure(config):
    """Go to a project with the shipped configuration, where the user has edited it."""
    gc.disable()  # until all tests are collected
    os.fsync = lambda _: None  # nobody reads these files after a power failure
    plugged.pytest_configure(config)
    if shipped.is_edited():
        folder = tempfile.TemporaryDirectory(prefix="ddlbench-tests-")
        config.add_cleanup(folder.cleanup)
        os.chdir(shipped.make_project(Path(folder.name)))
        shipped.CONFIG = Path.cwd() / "config"
        config.stash[_HEADER] = "config/ is edited: tests read it as it was committed"


def pytest_collection_finish():
    """Spare the collector all modules and tests, which live as long as this process."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_unconfigure():
    """Do not collect what ends with this process anyway."""
    gc.freeze()


def pytest_report_header(config):
    return config.stash.get(_HEADER, None)


def pytest_terminal_summary(terminalreporter):
    """Print what tests saw of faults, and keep it in $DDLBENCH_FAULT_TABLE if that is set."""
    if not fault_table.ROWS:
        return
    terminalreporter.section("faults in real runs")
    terminalreporter.write_line(fault_table.text())
    target = os.environ.get("DDLBENCH_FAULT_TABLE")
    if target:
        fault_table.save(Path(target))


@pytest.fixture
def third_party(tmp_path, monkeypatch):
    """Install a package of one module, with its entry points, until the test ends.

    ``third_party(module, source, {"ddlbench.datasets": {"toy": "SPEC"}})``
    """

    def forget() -> None:
        entry_points.installed.cache_clear()
        entry_points.third_party.cache_clear()
        registry.known.cache_clear()
        for parts in (DATASETS, EXPORTS, FIGURES, registry.NETWORKS):
            parts._loaded.clear()  # the next package may have a module of the same name

    def install(module: str, source: str, groups: dict[str, dict[str, str]]) -> None:
        folder = tmp_path / f"site-{module}"
        folder.mkdir()
        (folder / f"{module}.py").write_text(source)
        targets = {
            group: {name: f"{module}:{what}" for name, what in names.items()}
            for group, names in groups.items()
        }
        plugged.write_entry_points(folder, module, targets)
        monkeypatch.syspath_prepend(folder)
        forget()

    yield install
    monkeypatch.undo()
    for name in [name for name, module in sys.modules.items() if _lies_in(module, tmp_path)]:
        del sys.modules[name]
    forget()


def _lies_in(module, folder) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(folder))
