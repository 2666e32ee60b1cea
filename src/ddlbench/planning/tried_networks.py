"""Networks of users and libraries that were tried here before, in a file beside the results.

A network is tried again when its files, its library, or what records it (:mod:`ddlbench.networks`)
change. Ranks read the file, too: blocks that were compared with the network at the plan are not
compared at each start. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ddlbench.common.text import read_json
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import LIBRARIES, known

TRIED = RESULTS / ".networks-tried.json"
_RECORDERS = sorted((Path(__file__).parents[1] / "networks").glob("record*.py"))


def tried_before() -> dict[str, dict[str, Any]]:
    """What each network told, by :func:`key_of`; the last is the newest."""
    with suppress(OSError, ValueError):
        answers = dict(read_json(TRIED)).items()
        return {key: answer for key, answer in answers if isinstance(answer, dict)}
    return {}


def compared_before(network: str, dataset: str) -> bool:
    """Whether the network was cut here into blocks that compute what it does."""
    answer = tried_before().get(key_of(network, dataset), {})
    traits: dict[str, Any] = answer.get("traits", {"uncut": "it was not tried"})
    return not traits.get("uncut")


def key_of(network: str, dataset: str) -> str:
    """Network, dataset, and a digest of the files that decide what it is; it imports none."""
    return f"{network} {dataset} {_state_of(network)}"


def _state_of(network: str) -> str:
    """Names, times and sizes of the files of a network's package, or its library's version."""
    word, _, name = known("ddlbench.networks").get(network, network).partition(":")
    state: list[object] = []
    places = [str(file) for file in _RECORDERS]
    if word in LIBRARIES:
        with suppress(PackageNotFoundError):
            state = [version("transformers" if word == "hf" else word)]
        places.append(name.partition("?")[0])  # hf:mine.json
    else:
        found = PathFinder.find_spec(word.partition(".")[0], [str(Path.cwd()), *sys.path])
        if found is not None:
            places += found.submodule_search_locations or [found.origin or ""]
    files = [
        file
        for place in map(Path, places)
        for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
        if file.is_file()
    ]
    state += [(str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in files]
    return hashlib.blake2b(json.dumps(state).encode(), digest_size=8).hexdigest()
