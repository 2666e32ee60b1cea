"""A copy of the project on a file system that all nodes of a test bed share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from testbed import TestBed

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import project_root

ROOT = project_root()
STEADY = Path(__file__).with_name("steady_snakemake.py")


class Project:
    """A copy of the project on a file system that all nodes share."""

    def __init__(
        self,
        folder: Path,
        bed: TestBed,
        experiment: dict,
        networks: str,
        status_command: str = "squeue",
    ) -> None:
        self.folder, self.bed, self.status_command = folder, bed, status_command
        for name in ("rules", "workflow", "config", "profiles", "envs"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "Snakefile", folder)
        (folder / "cluster_network.py").write_text(networks)
        (folder / "config" / "sites" / "testbed.yaml").write_text(bed.site_text())
        self.configure(experiment)

    def change_site(self, **keys: object) -> None:
        """Change keys of the site file."""
        path = self.folder / "config" / "sites" / "testbed.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))

    def configure(self, experiment: dict) -> None:
        (self.folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))

    def command(self, *arguments: str) -> list[str]:
        """The workflow as a person on the login node would run it, only with shorter pauses."""
        return [
            *(sys.executable, str(STEADY), *arguments, "--profile", "profiles/slurm"),
            *("--configfile", "experiment.yaml", "--jobs", "3"),
            *("--slurm-status-command", self.status_command),
            *("--slurm-init-seconds-before-status-checks", "1"),
            *("--seconds-between-status-checks", "1", "--max-status-checks-per-second", "2"),
            *("--max-jobs-per-timespan", "100/1s", "--latency-wait", "10"),
        ]

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        modules = filter(None, (str(self.folder), os.environ.get("PYTHONPATH")))
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
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def results(self) -> dict[Cell, dict]:
        found = {}
        for path in self.folder.glob("results/testbed/cells/**/result.json"):
            result = json.loads(path.read_text())
            found[Cell.from_dict(result["cell"])] = result
        return found

    def jobs_submitted(self, run: subprocess.CompletedProcess[str]) -> int:
        return (run.stdout + run.stderr).count("has been submitted with SLURM jobid")
