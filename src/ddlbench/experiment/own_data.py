"""Datasets of one's own, a line of an experiment or of a site file each.

::

    data:                                    photos is a dataset as cifar10 is:
      photos: {folder: ~/photos, size: 96}   matrix: {dataset: [photos], ...}

A declared dataset is looked at when its facts are first needed: its classes and samples are
counted. Processes that this one starts, such as the ranks of a cell, get the counted facts in the
environment, so that all of them know the same dataset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from ddlbench.common.entry_points import load_target
from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import check_against
from ddlbench.experiment.dataset_spec import DATASETS, OWN_DATA, DatasetSpec

_COUNT = "ddlbench.datasets.declared:counted"  # reads files, which this folder does not


def declare(data: Mapping[str, Mapping[str, Any]], where: str, *, replace: bool = True) -> None:
    """Add declared datasets to the registry.

    Args:
        data: the key ``data`` of a file.
        where: the file's name, for messages.
        replace: also those that are declared already.

    Raises:
        ConfigError: a key is unknown or its value not allowed, or a name is another dataset's.
    """
    check_against("data", data, f"{where}: data")
    for name, entry in data.items():
        place = f"{where}: data.{name}"
        _check_entry(entry, place)
        if name in DATASETS.declared and not replace:
            continue
        try:
            DATASETS.declare(name, partial(_counted, name, dict(entry), f"data.{name}"))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
        _FILES[name] = where


_FILES: dict[str, str] = {}  # which file declared a dataset


def declaring_file(names: Iterable[str]) -> str | None:
    """The file that declared a dataset, of which one name is among these; None if there is none."""
    return next((_FILES[name] for name in names if name in _FILES), None)


def _check_entry(entry: Mapping[str, Any], place: str) -> None:
    of_tokens = "tokens" in entry or entry.get("format") == "tokens"
    if ("folder" in entry) == ("tokens" in entry):
        raise ConfigError(
            f"{place}: write either folder, of images, or tokens, a file of token numbers"
        )
    needed = ("vocabulary", "sequence") if of_tokens else ()
    for key in needed:
        if key not in entry:
            raise ConfigError(
                f"{place}: {key} is missing; tokens have a vocabulary (number of different tokens) "
                "and a sequence (tokens that the network reads at once)"
            )
    foreign = ("size", "colours", "classes") if of_tokens else ("vocabulary",)
    for key in foreign:
        if key in entry:
            raise ConfigError(
                f"{place}: {key} belongs to {'images' if of_tokens else 'tokens'}; leave it out"
            )


def _counted(name: str, entry: dict[str, Any], place: str) -> DatasetSpec:
    spec: DatasetSpec = load_target(name, _COUNT)(name, entry, place)
    own = [json.loads(text) for text in (os.environ.get(OWN_DATA),) if text]
    others = [facts for facts in (own[0] if own else []) if facts["name"] != name]
    os.environ[OWN_DATA] = json.dumps([*others, asdict(spec)])
    return spec
