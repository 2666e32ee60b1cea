"""Run an experiment on a test bed, or on this machine, as a person there would.

Results stay in ``validation/.work/``: a study that was interrupted measures only what is missing.
The study runs a copy of workflow and package, so that edits meanwhile do not reach its jobs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CLUSTER_TESTS = ROOT / "tests" / "cluster"
sys.path.insert(0, str(CLUSTER_TESTS))

from testbed import Options, TestBed, missing  # noqa: E402

__all__ = ["Part", "Study", "chosen_parts", "has_results"]

_WORK = ROOT / "validation" / ".work"

# Predictors read all of these.
_MEASURED = (
    *("profile.json", "links.json"),
    *("plan.json", "result.json", "steps.csv", "trace.json"),
)
_PARTS = ("rules", "workflow", "config", "profiles", "envs", "src")


def chosen_parts(document: str, parts: Iterable[str]) -> argparse.Namespace:
    """What the command line asks for: ``parts``, all by default, and whether to ``report`` only.

    ``document`` begins with the sentence that describes the study.
    """
    every = list(parts)
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", default=every, help=f"of {', '.join(every)}; all"
    )
    parser.add_argument("--report", action="store_true", help="from what was measured before")
    return parser.parse_args()


def has_results(name: str) -> bool:
    """Whether a cell of the study ``name`` was measured here."""
    return any((_WORK / name / "results").rglob("result.json"))


class Study:
    """A copy of the project's workflow, whose results stay.

    Args:
        name: folder below ``validation/.work``.
        experiment: the experiment file's content, without ``site``.
        site_keys: what the site file says besides what follows from the test bed.
    """

    def __init__(
        self, name: str, experiment: dict[str, Any], site_keys: dict[str, Any] | None = None
    ) -> None:
        self._site_keys = site_keys or {}
        self.folder = _WORK / name
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in _PARTS:
            shutil.rmtree(self.folder / part, ignore_errors=True)
            shutil.copytree(ROOT / part, self.folder / part)
        shutil.copy(ROOT / "Snakefile", self.folder)
        (self.folder / "experiment.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False))

    def describe_site(self, site: str, options: Options) -> None:
        """Write the site file of a test bed of these options."""
        values = {**yaml.safe_load(TestBed(options).site_text()), **self._site_keys}
        (self.folder / "config" / "sites" / f"{site}.yaml").write_text(yaml.safe_dump(values))

    def run(self, site: str, options: Options, *targets: str) -> None:
        """Measure what is missing on a test bed of these options; one cell at a time."""
        lacking = missing()
        if lacking:
            sys.exit(f"no test bed here: {lacking}")
        self.describe_site(site, options)
        with TestBed(options) as bed:
            bed.wait_idle()
            self._call(
                *(sys.executable, "-m", "snakemake", *targets, "--profile", "profiles/slurm"),
                *("--configfile", "experiment.yaml", "--config", f"site={site}", "--jobs", "1"),
                *("--slurm-init-seconds-before-status-checks", "3"),
                *("--seconds-between-status-checks", "3"),
                *("--max-jobs-per-timespan", "100/1s", "--latency-wait", "20"),
            )

    def run_here(self, *targets: str) -> None:
        """Measure what is missing on this machine itself; one cell at a time."""
        self._call(
            *(sys.executable, "-m", "snakemake", *targets, "--profile", "profiles/local"),
            *("--configfile", "experiment.yaml", "--keep-going"),
        )

    def run_in_guest(self, *targets: str) -> None:
        """Measure what is missing in a guest whose kernel has netem; see netem_guest.sh."""
        # The guest is slow: what is compiled here it need not compile.
        self._call(sys.executable, "-m", "compileall", "-q", "src", "workflow")
        self.call_in_guest(
            *("-m", "snakemake", *targets, "--profile", "profiles/local"),
            *("--configfile", "experiment.yaml", "--keep-going"),
        )

    def call_in_guest(self, *arguments: str) -> None:
        """Run Python there; the study's folder is the one that it can write."""
        guest = str(ROOT / "validation" / "netem_guest.sh")
        self._call("bash", guest, "--keep", str(self.folder), sys.executable, *arguments)

    def describe_own_site(self, site: str, like: str) -> None:
        """Write a site file: one of the project's own with this study's keys."""
        sites = self.folder / "config" / "sites"
        values = {**yaml.safe_load((sites / f"{like}.yaml").read_text()), **self._site_keys}
        (sites / f"{site}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    def ddlbench(self, *arguments: str) -> str:
        """Run the ``ddlbench`` command in the study's folder; returns what it printed."""
        return self._call(sys.executable, "-m", "ddlbench.cli", *arguments, capture=True)

    def archive(self, target: Path) -> None:
        """Keep all that was measured in one .tar.xz, from which every table can be made anew.

        Cells are alike: compressed together they take half of what a zip file takes.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        with tarfile.open(partial, "w:xz", preset=9) as kept:
            for path in sorted((self.folder / "results").rglob("*")):
                if path.name in _MEASURED:
                    kept.add(path, str(path.relative_to(self.folder)), filter=_anonymous)
        partial.replace(target)

    def unpack(self, source: Path) -> None:
        """Have what :meth:`archive` kept, in place of what is here."""
        if not source.is_file():
            sys.exit(f"{source.relative_to(ROOT)} is missing: measure the study first")
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        with tarfile.open(source, "r:xz") as kept:
            kept.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 or later
            kept.extractall(self.folder)

    def keep(self, source: Path, target: Path) -> None:
        """Copy a figure or table of the study into the documentation."""
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / source, target)

    def _call(self, *command: str, capture: bool = False) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}:{self.folder / 'src'}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE if capture else None,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command[:4])} ... ended with {done.returncode}")
        return done.stdout or ""


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the times and owners of this machine: equal results give an equal file."""
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.mode = 0, 0, 0, "", "", 0o644
    return entry


# What makes the folder of measured cells, and their experiment.
Part = tuple[Callable[[], Study], dict[str, Any]]
