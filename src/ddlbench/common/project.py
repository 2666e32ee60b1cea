"""Where the repository lies that holds the workflow, its configuration and its results."""

from __future__ import annotations

from pathlib import Path


def project_root() -> Path:
    """The folder that holds the Snakefile: the working folder, one above it, or the checkout."""
    return repository_above() or Path(__file__).resolve().parents[3]


def repository_above() -> Path | None:
    """The nearest repository that holds the working folder; None if there is none."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "Snakefile").is_file() and (folder / "config" / "sites").is_dir():
            return folder
    return None
