"""A ReFrame test that runs an experiment of ddlbench and compares its speeds with references.

::

    reframe -c envs/reframe/ddlbench_smoke.py -r                        this machine
    reframe -c envs/reframe/ddlbench_smoke.py -r -P site=mycluster      config/sites/mycluster.yaml
    reframe ... -S references=refs.yaml -S tolerance=0.05               fail when 5 % slower

ReFrame runs Snakemake where ReFrame itself runs. On a cluster, Snakemake submits every cell as a
SLURM job: accounts, partitions and GPUs stand in the site file. So the test needs no
ReFrame partition of its own, but a stage folder that the nodes see (``--stage``).

Every run measures all cells anew, below the stage folder. Each cell that may run here must end
with status ``ok``. ReFrame keeps the tables, the report and ``measured.yaml`` in its output folder.
That file is a file of references::

    mycluster: {ddp_1x2: 3000.0}      # site: {cell: training samples a second}

Copy it to where ``-S references=`` points. A cell with a reference must run, and be no more than
``tolerance`` slower. A cell without one is only reported.
"""

import csv
import re
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
import yaml
from reframe.core.builtins import (
    parameter,
    run_after,
    run_before,
    sanity_function,
    variable,
)

PROJECT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "rules", "workflow", "config", "profiles")
UNIT = "samples/s"
# Axes that a name has only where the experiment has several values of them.
AXES = (
    *("dataset", "network", "batch_size", "precision", "fabric"),
    *("options", "settings", "repeat"),
)


@rfm.simple_test
class DdlbenchSmoke(rfm.RunOnlyRegressionTest):
    """Trains every cell of an experiment for a few steps."""

    descr = "Training of neural networks in parallel, by each strategy"
    site = parameter(["local"], type=str, loggable=True)
    experiment = variable(str, value="config/experiments/smoke.yaml")
    environment = variable(str, value=str(PROJECT / ".venv"))
    references = variable(str, value="")
    tolerance = variable(float, value=0.1)

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    local = True
    sourcesdir = None
    executable = "snakemake"
    keep_files = ["measured.yaml", "results/*/*/tables", "results/*/*/report.html"]
    tags = {"ddlbench", "deep-learning", "performance"}

    @property
    def site_name(self) -> str:
        """The site's name, which may be given as the path of its file."""
        return Path(self.site).stem if self.site.endswith((".yaml", ".yml")) else self.site

    @run_after("init")
    def lead_snakemake(self) -> None:
        """Write the command: a stage folder with links to the project is a project of its own."""
        is_file = self.site.endswith((".yaml", ".yml"))
        site_file = _found(self.site) if is_file else PROJECT / f"config/sites/{self.site}.yaml"
        launcher = yaml.safe_load(site_file.read_text(encoding="utf-8"))["launcher"]
        if self.references:  # ReFrame leaves the working folder later
            self.references = str(_found(self.references))
        activate = Path(self.environment) / "bin/activate"
        self.prerun_cmds = [
            *(f"ln -sfn '{PROJECT / part}' ." for part in PARTS),
            *([f"source '{activate}'"] if activate.is_file() else []),
        ]
        self.executable_opts = [
            f"--profile=profiles/{launcher}",
            f"--configfile '{_found(self.experiment)}'",
            f"--config 'site={site_file if is_file else self.site}'",
        ]

    @sanity_function
    def every_cell_is_ok(self):
        """Fail on a failed workflow, a cell that is not ok, or a reference without a cell."""
        rows = self._rows()
        bad = [
            f"{name} is {row['status']}: {row['reason']}"
            for name, row in rows.items()
            if row["status"] not in ("ok", "unsupported")
        ]
        speeds = self._speeds()
        lost = [
            f"{name} has a reference, but {rows[name]['reason'] if name in rows else 'no cell'}"
            for name in self._references()
            if name not in speeds
        ]
        text = "; ".join(bad + lost) or "no cell is ok"
        ended = sn.assert_eq(self.job.exitcode, 0, f"Snakemake ended with {{0}}; {text}")
        return sn.all([sn.assert_true(speeds and not bad and not lost, text), ended])

    @run_before("performance")
    def compare_with_references(self) -> None:
        """Give ReFrame a variable for every cell, and write them as references of later runs."""
        speeds = self._speeds()
        self.perf_variables = {
            name: sn.make_performance_function(sn.defer(speed), UNIT)
            for name, speed in speeds.items()
        }
        known = {
            name: (value, -self.tolerance, None, UNIT) for name, value in self._references().items()
        }
        self.reference = {"*": known} if known else {}
        written = {self.site_name: {name: round(speed, 3) for name, speed in speeds.items()}}
        path = Path(self.stagedir) / "measured.yaml"
        path.write_text(yaml.safe_dump(written), encoding="utf-8")

    def _speeds(self) -> dict[str, float]:
        rows = self._rows().items()
        return {name: float(row["samples_per_s"]) for name, row in rows if row["status"] == "ok"}

    def _rows(self) -> dict[str, dict[str, str]]:
        """Rows of the table of measurements, by a name of each cell; empty without a table."""
        tables = list(Path(self.stagedir).glob("results/*/*/tables/measurements.csv"))
        if not tables:
            return {}
        with tables[0].open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        varying = [axis for axis in AXES if len({row[axis] for row in rows}) > 1]
        named = ((_name(row, (*varying, "strategy", "geometry")), row) for row in rows)
        return dict(named)

    def _references(self) -> dict[str, float]:
        if not self.references:
            return {}
        path = Path(self.references)
        known = yaml.safe_load(path.read_text(encoding="utf-8"))
        speeds = (known.get(self.site_name) or {}) if isinstance(known, dict) else None
        if not isinstance(speeds, dict) or any(not _is_speed(each) for each in speeds.values()):
            raise ValueError(f"{path}: write site: {{cell: training samples a second, over 0}}")
        return speeds


def _is_speed(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _name(row: dict[str, str], columns: tuple[str, ...]) -> str:
    """A name without the colon, which ReFrame uses for itself."""
    return re.sub(r"\W+", "_", "_".join(row[column] for column in columns))


def _found(name: str) -> Path:
    """The file of that name in the working folder, or else in the project."""
    return Path(name).resolve() if Path(name).is_file() else PROJECT / name
