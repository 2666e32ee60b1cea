"""The checkout's plug-ins, also where they are not installed: their entry points are written.

::

    <temporary>/ddlbench_claims-1.dist-info/     entry points, as its pyproject.toml has them
    PYTHONPATH=<temporary>:plugins/claims/src    for the processes that tests start
"""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PLUGINS = sorted(Path(__file__).resolve().parents[1].glob("plugins/*/pyproject.toml"))


def write_entry_points(
    folder: Path, name: str, groups: Mapping[str, Mapping[str, str]], summary: str = ""
) -> None:
    """Have a folder of ``sys.path`` hold a package's entry points: group -> name -> target."""
    facts = folder / f"{name.replace('-', '_')}-1.dist-info"
    facts.mkdir()
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nSummary: {summary}\n"
    (facts / "METADATA").write_text(described)
    lines = [
        f"[{group}]\n" + "".join(f"{entry} = {target}\n" for entry, target in targets.items())
        for group, targets in groups.items()
    ]
    (facts / "entry_points.txt").write_text("\n".join(lines))


def pytest_configure(config) -> None:
    """Put plug-ins that are not installed on the path of this process and of its children."""
    # Before torch is loaded. Its threads spin while they wait for each other, and the processes of
    # a test run share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    missing = [path for path in PLUGINS if not _is_installed(f"ddlbench-{path.parent.name}")]
    if not missing:
        return
    folder = tempfile.TemporaryDirectory(prefix="ddlbench-plugins-")
    config.add_cleanup(folder.cleanup)
    for path in missing:
        project = tomllib.loads(path.read_text())["project"]
        write_entry_points(
            Path(folder.name), project["name"], project["entry-points"], project["description"]
        )
    places = [folder.name, *(str(path.parent / "src") for path in missing)]
    sys.path[:0] = places
    earlier = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *([earlier] if earlier else [])])


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
