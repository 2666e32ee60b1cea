"""Which networks of users and libraries were tried here before, and whether their code changed.

A file beside the results holds them. Such a network is tried again when its files, those beside it
that they import, its library, or what records and inspects it (:mod:`ddlbench.networks`) change.
Ranks read the file, too: blocks that were compared with the network at the plan are not compared at
each start. So do predictions: no strategy is ranked that cannot train a network that was tried.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sysconfig import get_paths
from typing import Any

from ddlbench.common.document import read_json, read_once
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import LIBRARIES, NETWORKS, known
from ddlbench.planning.network_tables import NetworkTraits

TRIED = RESULTS / ".networks-tried.json"
_NETWORKS = Path(__file__).parents[1] / "networks"
_RECORDERS = sorted(
    [*_NETWORKS.glob("record*.py"), _NETWORKS / "inspection.py", _NETWORKS / "linear_pairs.py"]
)


def tried_before() -> dict[str, dict[str, Any]]:
    """What each network told, by :func:`key_of`; the last is the newest."""
    with suppress(OSError, ValueError):
        answers = dict(read_json(TRIED)).items()
        return {key: answer for key, answer in answers if isinstance(answer, dict)}
    return {}


def compared_before(network: str, dataset: str) -> bool:
    """Whether the network was cut here into blocks that compute what it does."""
    traits = _traits_of(key_of(network, dataset))
    return traits is not None and not traits.uncut


def tried_block_count(network: str, dataset: str) -> int | None:
    """How many blocks a network has; None if it was not tried here, or cannot be cut."""
    traits = tried_traits(network, dataset)
    return None if traits is None or traits.uncut else len(traits.blocks) or None


def tried_traits(network: str, dataset: str) -> NetworkTraits | None:
    """The traits of a network as its code is now; None if it was not tried here."""
    with suppress(OSError):
        return _traits_then(key_of(network, dataset), TRIED.stat().st_mtime_ns)
    return None


@cache
def _traits_then(key: str, _written_ns: int) -> NetworkTraits | None:
    return _traits_of(key)


def _traits_of(key: str) -> NetworkTraits | None:
    traits = tried_before().get(key, {}).get("traits")
    return None if traits is None else NetworkTraits.from_dict(traits)


def key_of(network: str, dataset: str) -> str:
    """Network, dataset, and a digest of the files that decide what it is; it imports none."""
    release, files = _code_of(network)
    state = [release, [(str(file), *times) for file, *times in _stated(_RECORDERS) + files]]
    return f"{network} {dataset} {_digest_of(state)}"


def network_digest(network: str) -> str | None:
    """A digest of the code of a network that is not built in, without comments and spaces.

    Of a library's network it is a digest of the library's version. None of a built-in network, and
    where the code is not here.
    """
    if network in NETWORKS.built_in:
        return None
    release, files = _code_of(network)
    return _digest_of_code(release, files) if release or files else None


_File = tuple[Path, int, int]  # its time of change and size


def _code_of(network: str) -> tuple[str, tuple[_File, ...]]:
    """The version of a network's library, or the files of its package."""
    word, _, name = known("ddlbench.networks").get(network, network).partition(":")
    if word not in LIBRARIES:
        return "", _stated(_files_of(word.partition(".")[0]))
    files = _stated([Path(name.partition("?")[0])])  # hf:mine.json
    with suppress(PackageNotFoundError):
        return version("transformers" if word == "hf" else word), files
    return "", files


def _stated(files: Sequence[Path]) -> tuple[_File, ...]:
    return tuple(
        (file, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file()
    )


@cache
def _digest_of_code(release: str, files: tuple[_File, ...]) -> str:
    return _digest_of([release, *(_statements_in(file) for file, *_ in files)])


def _statements_in(file: Path) -> str:
    """What a file of the user's says, whatever its comments and spaces; of others its digest."""
    content = file.read_bytes()
    if file.suffix == ".py" and "site-packages" not in file.parts:
        with suppress(ValueError, SyntaxError, RecursionError):
            return ast.unparse(ast.parse(content))
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _digest_of(state: object) -> str:
    return hashlib.blake2b(json.dumps(state).encode(), digest_size=8).hexdigest()


def _files_of(module: str) -> list[Path]:
    """The files of a module or package, and of those beside it that they import."""
    folders = [str(Path.cwd()), *sys.path]
    files: dict[str, list[Path]] = {}
    names = [module]
    while names:
        name = names.pop()
        spec = None if name in files else PathFinder.find_spec(name, folders)
        if spec is None:
            continue
        places = [Path(place) for place in spec.submodule_search_locations or [spec.origin or ""]]
        files[name] = [
            file
            for place in places
            for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
        ]
        folders = [str(places[0].parent)]
        if folders[0] not in get_paths().values():  # else all that is installed lies beside it
            names += [imported for file in files[name] for imported in _imports_of(file)]
    return [file for name in sorted(files) for file in files[name]]


@read_once(None)
def _imports_of(file: Path) -> tuple[str, ...]:
    """Names of the modules that a file imports, as far as their first dot."""
    names: list[str] = []
    with suppress(OSError, ValueError, SyntaxError, RecursionError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names += [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module.partition(".")[0])
    return tuple(names)
