"""A copy of the project that Snakemake really runs in: other rules, results and data than yours."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from imported_python import ImportedPython

from ddlbench.experiment.paths import project_root

PROJECT = project_root()
PARTS = ("Snakefile", "rules", "workflow", "config", "profiles", "envs")
SETTINGS = {"batch_size": 8, "data_scale": 0.0008, "epochs": 1, "warmup_steps": 1, "max_steps": 2}
_LIMIT_S = 240.0  # of a command
VARIANT = "batch_size=8+epochs=1+warmup_steps=1+max_steps=2+data_scale=0.0008"


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    text: str
    stdout: str
    log: str = ""

    @property
    def jobs(self) -> dict[str, int]:
        """Snakemake's table of jobs: rule -> how many. A dry run prints it, a run logs it."""
        _, _, table = (self.text + self.log).partition("Job stats:\n")
        rows = re.findall(r"^([a-z_]+) +(\d+)$", table.partition("\n\n")[0], re.MULTILINE)
        return {rule: int(count) for rule, count in rows if rule != "total"}

    @property
    def did_nothing(self) -> bool:
        return self.code == 0 and "Nothing to be done" in self.text


class Workflow:
    """The project in a folder of its own, with a site of two small devices."""

    def __init__(self, folder: Path) -> None:
        self._python: ImportedPython | None = None
        self.folder = folder / "project"
        self.folder.mkdir()
        for part in PARTS:
            copy = shutil.copytree if (PROJECT / part).is_dir() else shutil.copyfile
            copy(PROJECT / part, self.folder / part)
        # The package too: a test touches it, and its mtime in your checkout is yours.
        self.package = self.folder / "src" / "ddlbench"
        shutil.copytree(PROJECT / "src" / "ddlbench", self.package)
        self.scratch = folder / "scratch"
        self.fixed = folder / "fixed"
        site = {
            "description": "a test",
            "device": "cpu",
            "launcher": "local",
            "devices_per_node": 2,
            "scratch": str(self.scratch),
            "cell_timeout_s": 120,
        }
        self.write("config/sites/box.yaml", site)
        search = [str(self.package.parent), str(Path(__file__).parent)]
        if os.environ.get("PYTHONPATH"):
            search.append(os.environ["PYTHONPATH"])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(search),
            "TINY_NETWORKS_FIXED": str(self.fixed),
            "NO_COLOR": "1",
            "COLUMNS": "100",
        }

    def write(self, name: str, values: dict[str, Any]) -> str:
        """Write a YAML file of the project; returns its name."""
        (self.folder / name).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return name

    def experiment(self, name: str = "experiment.yaml", **changes: Any) -> str:
        """Write an experiment: one network, three strategies, unless ``changes`` say otherwise."""
        matrix = {
            "dataset": ["mnist"],
            "network": ["mlp"],
            "strategy": ["sequential", "ddp", "gpipe"],
            "geometry": ["1x2"],
            **changes.pop("matrix", {}),
        }
        values = {
            "experiment": "tiny",
            "site": "box",
            "matrix": matrix,
            "settings": SETTINGS,
            "strategies": {"gpipe": {"balance": "blocks"}},
            **changes,
        }
        return self.write(name, values)

    def snakemake(
        self, *arguments: str, config: str | None = None, profile: str = "local"
    ) -> Ended:
        """Run Snakemake in the copy; targets come first, as options take many values."""
        command = ["snakemake", *arguments, "--profile", f"profiles/{profile}"]
        if config is not None:
            command += ["--configfile", config]
        return self._run(command)

    def ddlbench(self, *arguments: str) -> Ended:
        """Run the `ddlbench` command in the copy."""
        return self._run(["ddlbench.cli", *arguments])

    def end(self) -> None:
        """End what has imported modules for the commands here."""
        if self._python is not None:
            self._python.end()

    def _run(self, arguments: list[str]) -> Ended:
        """Run a module in the copy; in a Python of its own if the test changed the environment."""
        if self._python is None:
            self._python = ImportedPython(self.folder, self.environment)
        if self.environment == self._python.environment:
            files = [self.folder.with_name(name) for name in ("stdout.txt", "stderr.txt")]
            code = self._python.run(arguments, *files, limit_s=_LIMIT_S)
            stdout, stderr = (file.read_text(encoding="utf-8") for file in files)
        else:
            done = subprocess.run(
                [sys.executable, "-m", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            code, stdout, stderr = done.returncode, done.stdout, done.stderr
        logs = sorted(self.folder.glob(".snakemake/log/*.log"))
        log = logs[-1].read_text(encoding="utf-8") if logs else ""
        return Ended(code, stdout + stderr, stdout, log)

    def cell(self, network: str, strategy: str, variant: str = VARIANT, repeat: int = 0) -> Path:
        """Folder of a cell on its usual geometry."""
        geometry = "1x1" if strategy == "sequential" else "1x2"
        balance = "+balance=blocks" if strategy == "gpipe" else ""
        cells = self.folder / "results" / "box" / "cells" / "mnist"
        return (cells / network / strategy / geometry / (variant + balance)) / f"rep{repeat}"

    def results(self) -> dict[str, tuple[bytes, int]]:
        """Every result there is: path -> content and time of change."""
        return {
            str(path.relative_to(self.folder)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in (self.folder / "results").rglob("result.json")
        }

    def result(self, network: str, strategy: str) -> dict[str, Any]:
        """One cell's result."""
        return json.loads((self.cell(network, strategy) / "result.json").read_bytes())

    def measurements(self, experiment: str = "tiny") -> dict[str, dict[str, str]]:
        """Rows of ``measurements.csv`` by cell."""
        table = self.folder / "results" / "box" / experiment / "tables" / "measurements.csv"
        with table.open(encoding="utf-8", newline="") as lines:
            return {row["cell_id"]: row for row in csv.DictReader(lines)}

    def figures(self, experiment: str = "tiny") -> set[str]:
        """Names of the files of its figures that are not empty."""
        folder = self.folder / "results" / "box" / experiment / "figures"
        return {path.name for path in folder.glob("*.*") if path.stat().st_size > 0}
