"""Find the repository that a command works on, from any folder inside it."""

from __future__ import annotations

import os
from pathlib import Path

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS

CONFIG = Path("config/config.yaml")


def enter_project(configfile: Path = CONFIG) -> Path:
    """Work in the repository that holds the current folder, and return the experiment's file.

    Results, sites and the default experiment lie at fixed places below the repository's root. A
    file that exists in the current folder is taken from there.

    Raises:
        ConfigError: no folder from here upwards is a repository, and there is nothing to read here.
    """
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if is_project(folder)), None)
    if root is None:
        if configfile.is_file() or (configfile == CONFIG and RESULTS.is_dir()):
            return configfile
        raise ConfigError(
            f"no ddlbench repository (a Snakefile beside {CONFIG}) in {here} or above it: "
            "run this inside one"
        )
    if root != here:
        if configfile.is_file():
            configfile = configfile.resolve()
        os.chdir(root)
    return configfile


def is_project(folder: Path) -> bool:
    """Whether a folder is the root of a repository."""
    return (folder / "Snakefile").is_file() and (folder / CONFIG).is_file()
