"""Every path of the project, and the repository in which they lie.

::

    results/<site>/cells/<cell id>/result.json     last, atomic: the cell is done
                                  /plan.json       who runs where, and how
                                  /steps.csv       one row per step
                                  /log.txt         what every rank printed
                                  /failure.json    why there is no result; see status.py
                                  /queued.json     the SLURM job that will measure it
                                  /.checkpoint/    checkpoints of an unfinished cell, if any
                                  /.run-*/         while it runs: reports, log.txt, progress.json
    results/<site>/links/<fabric>/links.json       latency and bandwidth between devices
    results/<site>/profiles/<profile id>/profile.json   times and bytes of a network's layers
                                        /run-<n>/profile.json   one of several runs that it pools
    results/<site>/choices/<case>/choice.json      what `ddlbench recommend --measure` chose
    results/<site>/<experiment>/tables/*.csv
                               /figures/*.png, *.pdf
                               /figures/predictions/*.png, *.pdf
                               /predictions.json    predicted and measured steps of its cells
                               /report.html         all of these for a reader, in one file
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from ddlbench.common.errors import ConfigError, obstacle, shown

# Apptainer and Singularity tell processes in a container the name of its image.
_IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")

RESULTS = Path("results")
LINKS_FILE = "links.json"
PROGRESS_FILE = "progress.json"
QUEUED_FILE = "queued.json"
STAGE_LOG = "stage.log"
LOG_HEADING = "# "  # begins the line of a log that names its job

FOLDER_NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
"""No leading dash: a name that begins with one is an option to a command."""

# Keys of a site file that are paths on a node, and an example for messages.
_WANTED = {
    "scratch": "a folder of the node's own that can be made there, for example /tmp",
    "checkpoints": "a folder that all nodes see, for example /project/you/checkpoints",
    "container.image": "the image's path on the nodes, for example /project/you/ddlbench.sif",
}


def check_folder_name(name: str, fault: str) -> None:
    """Raise ConfigError, which begins with ``fault``, unless a folder may have this name."""
    if not re.fullmatch(FOLDER_NAME_PATTERN, name):
        raise ConfigError(
            f"{fault}; write up to 100 letters, digits and the signs _ . - only, and no - or . "
            "first"
        )


def check_results(site: str, files: Iterable[Path] = ()) -> None:
    """Refuse places that can hold no results, before anything is read or written there.

    Raises:
        ConfigError: a link leads nowhere, or a file lies where a folder should be.
    """

    @cache
    def highest_missing(folder: Path) -> Path | None:
        above = highest_missing(folder.parent) if folder.parent != folder else None
        return above or (None if folder.is_dir() else folder)

    # Of thousands of folders none may be there, and what keeps one from being made is above all.
    folders = dict.fromkeys(file.parent for file in (result_file(site, "any"), *files))
    for folder in filter(None, dict.fromkeys(map(highest_missing, folders))):
        in_the_way = obstacle(folder / "any file")
        if in_the_way is not None:
            raise ConfigError(in_the_way)


def cell_dir(site: str, cell_id: str) -> Path:
    """Folder of one cell's measurement."""
    return RESULTS / f"{site}/cells/{cell_id}"


def checkpoint_dir(template: str | None, site: str, cell_id: str, cell_folder: Path) -> Path:
    """Folder of one cell's checkpoints.

    ``template`` is the site's ``checkpoints``; None takes a folder in ``cell_folder``.

    Raises:
        ConfigError: see :func:`expanded`.
    """
    if template is None:
        return cell_folder / ".checkpoint"
    return expanded(template, "checkpoints") / site / cell_id


def result_file(site: str, cell_id: str, results: Path = RESULTS) -> Path:
    """The file that exists once the cell is done; ``results`` is the folder that holds sites."""
    return results / f"{site}/cells/{cell_id}/result.json"


def dataset_file(site: str, cell_id: str) -> Path:
    """What `snakemake datasets` made of a cell's data on the nodes of its job."""
    return RESULTS / f"{site}/datasets/{cell_id}/staged.json"


def plan_file(site: str, cell_id: str) -> Path:
    """Who ran where in a cell, and how."""
    return cell_dir(site, cell_id) / "plan.json"


def links_file(site: str, fabric: str) -> Path:
    """Latency and bandwidth between devices under one link condition."""
    return RESULTS / site / "links" / fabric / LINKS_FILE


def profile_file(site: str, profile_id: str) -> Path:
    """Times and bytes of one network's layers on one device."""
    return RESULTS / site / "profiles" / profile_id / "profile.json"


def profile_run_file(site: str, profile_id: str, run: int) -> Path:
    """One of several runs that a profile pools, counted from 1."""
    return profile_file(site, profile_id).parent / f"run-{run}" / "profile.json"


def profile_id_of(measured: str) -> str:
    """The profile that a measured one belongs to: itself, or of which it is a run."""
    return re.sub(r"/run-\d+$", "", measured)


NAMES_OF_SITES = ("cells", "links", "profiles", "choices", "tunings", "calibration.json")
"""What lies beside the folders of experiments, so that no experiment can have such a name."""


def experiment_dir(site: str, experiment: str) -> Path:
    """Folder of one experiment's tables and figures."""
    return RESULTS / site / experiment


def tables_dir(site: str, experiment: str) -> Path:
    """Folder of the tables."""
    return experiment_dir(site, experiment) / "tables"


ADVICE = "advice.json"


def advice_file(site: str, experiment: str) -> Path:
    """What to train with in each case; of the form of a choice file."""
    return tables_dir(site, experiment) / ADVICE


def figures_dir(site: str, experiment: str) -> Path:
    """Folder of the figures."""
    return experiment_dir(site, experiment) / "figures"


def prediction_figures_dir(site: str, experiment: str) -> Path:
    """Folder of the figures that compare predictions with measurements."""
    return figures_dir(site, experiment) / "predictions"


def predictions_file(site: str, experiment: str) -> Path:
    """Predicted and measured steps of an experiment's cells."""
    return experiment_dir(site, experiment) / "predictions.json"


def html_report_file(site: str, experiment: str) -> Path:
    """Tables and figures of an experiment in one file."""
    return experiment_dir(site, experiment) / "report.html"


def scratch_dir(template: str) -> Path:
    """A site's scratch folder on this node.

    Raises:
        ConfigError: see :func:`expanded`; or this process runs in an image that does not show the
            folder.
    """
    folder = expanded(template, "scratch")
    image = next(filter(None, map(os.environ.get, _IMAGES)), None)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    # A folder that can be made here is no mistake.
    if image and there != folder and not os.access(there, os.W_OK):
        raise ConfigError(
            f"scratch: the image {image} does not show {folder} of {socket.gethostname()}; add "
            f"'--bind, {folder}' to the arguments of 'container' in the site file"
        )
    return folder


def expanded(template: str, key: str) -> Path:
    """Expand environment variables and ``~`` in a path of the site file.

    Call it on the node itself, as ``$TMPDIR`` and ``$SLURM_JOB_ID`` differ from the login node's.

    Raises:
        ConfigError: a variable is not set here, or the result is no absolute path.
    """
    path = _filled(template, key, f"write {_WANTED[key]}, in the site file")
    if path.is_absolute() and "$" not in str(path):
        return path
    raise ConfigError(
        f"{key}: {shown(template)} is no path on {socket.gethostname()}, as it becomes "
        f"{shown(str(path))}, no plain absolute path; write {_WANTED[key]}, in the site file"
    )


def _filled(template: str, where: str, remedy: str) -> Path:
    unset = [name for name in re.findall(r"\$\{?(\w+)", template) if not os.environ.get(name)]
    if unset:
        raise ConfigError(
            f"{where}: {shown(template)} is no path on {socket.gethostname()}, as ${unset[0]} is "
            f"not set there; {remedy}"
        )
    path = Path(os.path.expandvars(template))
    with suppress(RuntimeError):  # unknown user: the ~ stays
        path = path.expanduser()
    return path


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def data_path(template: str, where: str) -> Path:
    """A path of the user's own data, with variables and ``~`` expanded.

    One that is not absolute begins in the current folder, which is the project's.

    Raises:
        ConfigError: a variable is not set here, or it is an address.
    """
    if _ADDRESS.match(template):
        raise ConfigError(
            f"{where}: {shown(template)} is an address, and nothing is downloaded; download the "
            "data yourself, and write the path of its folder"
        )
    return _filled(template, where, "set it, or write the path").resolve()


def project_root() -> Path:
    """The folder that holds the Snakefile: the working folder, one above it, or the checkout."""
    return repository_above() or Path(__file__).resolve().parents[3]


def project_file(name: str) -> Path:
    """A file of the project, which may not exist; short where the working folder is above it."""
    path, here = project_root() / name, Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def repository_above(here: Path | None = None) -> Path | None:
    """The nearest repository that holds a folder, by default the working one; None if none does."""
    here = here or Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "Snakefile").is_file() and (folder / "config" / "sites").is_dir():
            return folder
    return None


CONFIG = Path("config/config.yaml")


def enter_project(configfile: Path = CONFIG) -> Path:
    """Work in the repository that holds the current folder, and return the experiment's file.

    Results, sites and the default experiment lie at fixed places below the repository's root. A
    file that exists in the current folder is taken from there. Outside of any repository, the one
    that holds the experiment's file is taken.

    Raises:
        ConfigError: no folder from here upwards is a repository, and there is nothing to read here.
    """
    here = Path.cwd()
    root = repository_above() or repository_above(configfile.resolve().parent)
    if root is None:
        if configfile.is_file() or (configfile == CONFIG and RESULTS.is_dir()):
            return configfile
        raise ConfigError(
            f"no ddlbench repository (a Snakefile beside config/sites) in {here} or above it: "
            "run this inside one"
        )
    if root != here:
        if configfile.is_file():
            configfile = configfile.resolve()
        os.chdir(root)
    return configfile
