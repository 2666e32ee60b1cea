"""A copy of the project on a file system that all nodes of a test bed share."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import yaml
from testbed import TestBed

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS, project_root
from ddlbench.planning.tried_networks import TRIED

ROOT = project_root()
# A shell has what it starts in the background ignore Ctrl-C, and so all that this starts in turn.
HEARS_CTRL_C = ("env", "--default-signal=INT")


_projects: dict[Path, Path] = {}  # the last results with the networks of a folder


def _networks_folder(place: Path, networks: str) -> Path:
    """The folder of a module that all projects with these networks import."""
    folder = place / f"networks-{hashlib.sha256(networks.encode()).hexdigest()[:8]}"
    if not folder.exists():
        folder.mkdir()
        (folder / "cluster_network.py").write_text(networks)
    return folder


def _copy_tried(networks: Path, results: Path) -> None:
    """Take over which networks an earlier project tried, which takes seconds."""
    results.mkdir()
    if (before := _projects.get(networks)) is not None and (before / TRIED.name).exists():
        shutil.copy(before / TRIED.name, results)
    _projects[networks] = results


class Project:
    """A copy of the project on a file system that all nodes share."""

    def __init__(
        self,
        folder: Path,
        bed: TestBed,
        experiment: dict,
        networks: str,
    ) -> None:
        self.folder, self.bed, self.most_jobs = folder, bed, 3
        for name in ("rules", "workflow", "config", "profiles", "envs"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "Snakefile", folder)
        self.networks = _networks_folder(folder.parent, networks)
        _copy_tried(self.networks, folder / RESULTS)
        (folder / "config" / "sites" / "testbed.yaml").write_text(bed.site_text())
        self.configure(experiment)

    def add_site(self, name: str, **keys: object) -> None:
        """Write a second site file for the same nodes; ``keys`` are what differs."""
        site = {**yaml.safe_load(self.bed.site_text()), **keys}
        (self.folder / "config" / "sites" / f"{name}.yaml").write_text(yaml.safe_dump(site))

    def change_site(self, **keys: object) -> None:
        """Change keys of the site file."""
        path = self.folder / "config" / "sites" / "testbed.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))

    def change_slurm(self, **keys: object) -> None:
        """Change keys of the site file's part ``slurm``."""
        path = self.folder / "config" / "sites" / "testbed.yaml"
        self.change_site(slurm={**yaml.safe_load(path.read_text())["slurm"], **keys})

    def configure(self, experiment: dict) -> None:
        (self.folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))

    def command(self, *arguments: str) -> list[str]:
        """The workflow as a person on the login node would run it, only with shorter pauses."""
        pauses = [
            *("--slurm-init-seconds-before-status-checks", "1"),
            *("--seconds-between-status-checks", "1"),
            *("--max-jobs-per-timespan", "100/1s", "--latency-wait", "10"),
        ]
        return [
            *(sys.executable, "-m", "snakemake", *arguments, "--profile", "profiles/slurm"),
            *("--configfile", "experiment.yaml", "--jobs", str(self.most_jobs)),
            *([] if os.environ.get("DDLBENCH_SHIPPED_PAUSES") else pauses),
        ]

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        modules = filter(None, (str(self.networks), os.environ.get("PYTHONPATH")))
        return {**os.environ, "PYTHONPATH": os.pathsep.join(modules), "PATH": path}

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the workflow in the background."""
        return subprocess.Popen(
            [*HEARS_CTRL_C, *self.command(*arguments)],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, *arguments: str, **variables: str) -> WatchedRun:
        """Start the workflow, and follow what it shows."""
        process = subprocess.Popen(
            [*HEARS_CTRL_C, *self.command(*arguments)],
            cwd=self.folder,
            env={**self.environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return WatchedRun(process)

    def ddlbench(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command of ddlbench about this experiment."""
        return subprocess.run(
            [sys.executable, "-m", "ddlbench.cli", *arguments, "--configfile", "experiment.yaml"],
            cwd=self.folder,
            env={**self.environment(), "COLUMNS": "1000", **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def results(self, site: str = "testbed") -> dict[Cell, dict]:
        results = {}
        for path in self.folder.glob(f"results/{site}/cells/**/result.json"):
            result = json.loads(path.read_text())
            results[Cell.from_dict(result["cell"])] = result
        return results

    def jobs_submitted(self, run: subprocess.CompletedProcess[str]) -> int:
        """Jobs that a run has submitted, alone or as tasks of an array."""
        lines = re.findall(r"^submitted: .*\(job [^)]+\)(?: and (\d+) more)?$", run.stderr, re.M)
        return sum(1 + int(more or 0) for more in lines)


class WatchedRun:
    """A run of the workflow whose screen is read while it goes on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.text = process, ""
        self._began_s = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def shows(self, words: str, seconds: float = 120, since_s: float | None = None) -> float:
        """Wait until the screen shows ``words``; returns seconds since the start or ``since_s``."""
        limit = time.monotonic() + seconds
        while words not in self.text:
            running = self.process.poll() is None or self._reader.is_alive()
            assert running and time.monotonic() < limit, f"{words!r} is not in:\n{self.text}"
            time.sleep(0.05)
        return time.monotonic() - (since_s or self._began_s)

    def end(self, seconds: float = 120) -> int:
        """Wait for its end; returns its exit status."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"it does not end:\n{self.text}") from None
        self._reader.join()
        return self.process.returncode
