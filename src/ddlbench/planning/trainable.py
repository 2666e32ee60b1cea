"""Whether a plan's strategy can train a network, by its traits, and which networks were tried.

A file beside the results holds the networks of users and libraries that were tried here before.
Such a network is tried again when its files, those beside it that they import, its library, or
what records it (:mod:`ddlbench.networks`) change. Ranks read the file, too: blocks that were
compared with the network at the plan are not compared at each start. Nothing here needs torch.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sysconfig import get_paths
from typing import Any

from ddlbench.common.document import read_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import LIBRARIES, known
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.pipeline_stages import StageOptions
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.strategy import strategy_of


def samples_per_pass(plan: StrategyPlan) -> int:
    """Samples that a forward pass of the network sees: a rank's, or a micro-batch's."""
    return max(1, plan.cell.batch_size // plan.parts)


def why_not_trained(traits: NetworkTraits, plan: StrategyPlan) -> Reason | None:
    """Why a plan's strategy cannot train a network with these traits; None if it can."""
    if (why := why_not_cut(traits, plan.cell)) is not None:
        return why
    if not traits.trains:
        return Reason(
            "nothing_trained",
            "no gradient reaches a weight of the network, so nothing would be trained; have some "
            "weight require one (requires_grad_)",
        )
    if traits.backward_within and plan.world_size > 1:
        return Reason(
            "backward_within",
            "the network calls backward() in its forward pass, whose gradients no other rank "
            "knows; add its loss to the outputs' by a torch.autograd.Function",
        )
    if traits.needs_two_samples and samples_per_pass(plan) == 1:
        return Reason(
            "one_sample_normalised",
            f"with {plan.cell.strategy} each pass sees one sample, and batch norm needs two or "
            f"more; raise batch_size to {2 * plan.cell.batch_size} or more",
        )
    return plan.strategy.why_not_network(traits, plan)


def has_stages(cell: Cell) -> bool:
    """Whether the cell's strategy deals blocks to stages."""
    return cell.devices > 1 and issubclass(strategy_of(cell.strategy).options, StageOptions)


def why_not_cut(traits: NetworkTraits, cell: Cell) -> Reason | None:
    """Why a network that is one block has no stages for the cell's strategy; None if it needs none.

    It needs no plan, so that it is known before a profile tells the blocks.
    """
    if not (traits.uncut and has_stages(cell)):
        return None
    return Reason(
        "cannot_be_cut",
        f"the network trains, but cannot be cut into stages: {traits.uncut}; take a strategy "
        "without stages (ddp, horovod, fsdp), or return a torch.nn.Sequential of blocks",
    )


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
    files = list(_RECORDERS)
    if word in LIBRARIES:
        with suppress(PackageNotFoundError):
            state = [version("transformers" if word == "hf" else word)]
        files.append(Path(name.partition("?")[0]))  # hf:mine.json
    else:
        files += _files_of(word.partition(".")[0])
    state += [
        (str(file), file.stat().st_mtime_ns, file.stat().st_size)
        for file in files
        if file.is_file()
    ]
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


def _imports_of(file: Path) -> Iterator[str]:
    """Names of the modules that a file imports, as far as their first dot."""
    with suppress(OSError, ValueError, SyntaxError, RecursionError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]
