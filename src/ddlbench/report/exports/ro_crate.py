"""RO-Crate: a study as WorkflowHub and Zenodo take it, with the workflow that made it.

The profile is Workflow Run Crate 0.5 (Leo et al. 2024, https://w3id.org/ro/wfrun/workflow/0.5)::

    ro-crate-metadata.json
    Snakefile, rules/, workflow/scripts/     the workflow: instrument of the run
    config/                                  experiments and sites: what it took
    results/<site>/<experiment>/             tables, figures, page: what it made
    results/<site>/cells/<cell id>/          files of the cells, in one data set a site
    cells.csv                                all cells, as ``ddlbench.load`` reads them

Paths are those of a repository, so ``ddlbench.load("results")`` reads the crate.
"""

from __future__ import annotations

import logging
import mimetypes
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ddlbench import __version__
from ddlbench.common.document import write_json
from ddlbench.common.errors import ConfigError, printable
from ddlbench.common.quantities import counted
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.result import Provenance
from ddlbench.report.exports.registry import Study, whole_folder
from ddlbench.report.result_tree import TreeCell
from ddlbench.report.tables import write_table
from ddlbench.report.tree_tables import TreeTables

_LOG = logging.getLogger(__name__)
_WORKFLOW = "Snakefile"
_BESIDE_WORKFLOW = ("rules", "workflow/scripts", "workflow/report", "LICENSE", "CITATION.cff")
_OF_A_CELL = ("result.json", "failure.json", "plan.json", "steps.csv", "partitions.csv")
_OF_AN_EXPERIMENT = ("tables/*", "figures/**/*", "predictions.json", "report.html")
_CONTEXT = "https://w3id.org/ro/crate/1.1/context"
_CRATE = "https://w3id.org/ro/crate/1.1"
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    _WORKFLOW_CRATE: "Workflow RO-Crate",
}
_BIOSCHEMAS = "https://bioschemas.org/profiles"
_LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
_HOMES = {
    "ddlbench": None,
    "snakemake": "https://snakemake.github.io",
    "torch": "https://pytorch.org",
}
_AUTHOR = re.compile(r"(?P<name>[^<>]*?)\s*<(?P<address>https?://[^<>\s]+)>")
_MEDIA = {".yaml": "application/yaml", ".smk": "text/x-python", ".md": "text/markdown"}
_README = """# {title}

{about}

- `cells.csv`: a row per cell; `results/`: its files, and tables and figures.
- `Snakefile`, `rules/`, `workflow/`, `config/`: the workflow, as ddlbench {version} has it; column
  `commit` of `cells.csv` names the commit that measured a cell.
- `ro-crate-metadata.json`: all of this for programs (Workflow Run Crate).

`ddlbench.load("results")` reads the cells as a table.
"""
_LICENCE_OF_WORKFLOW = "Apache-2.0"
Entity = dict[str, Any]


def write(tables: TreeTables, out: Path, study: Study) -> str:
    """Write the crate, which a validator of RO-Crates accepts, into the folder ``out``.

    Raises:
        ConfigError: no Snakefile is here, a file of an experiment is missing, or two results are
            of one cell.
    """
    root = project_root()
    if not (root / _WORKFLOW).is_file():
        raise ConfigError(
            f"{root} holds no {_WORKFLOW}, which a crate is about; run this inside the repository"
        )
    frame = tables.cells.frame
    for copy in frame[frame.duplicated(["site", "cell_id"])].itertuples():
        raise ConfigError(
            f"{copy.folder}: another folder holds a result of the same cell and site, and a crate "
            "holds one of each; export one tree"
        )
    with whole_folder(out) as folder:
        crate = _Crate(folder, tables, study)
        crate.add_workflow(root)
        crate.add_configs(root, study.configs)
        crate.add_results()
        crate.finish()
    return f"rocrate-validator validate -p workflow-run-crate {out}"


class _Crate:
    def __init__(self, folder: Path, tables: TreeTables, study: Study) -> None:
        self._folder, self._tables, self._study = folder, tables, study
        self._entities: list[Entity] = []
        self._parts: list[str] = []
        # What of the workflow a file stands for -> the files.
        self._taken: list[str] = []
        self._made: dict[str, list[str]] = {}
        self._beside: list[str] = []
        self._sites = dict.fromkeys(cell.site or "unknown" for cell in tables.tree.cells)

    def add_workflow(self, root: Path) -> None:
        """Copy the workflow, and what it includes."""
        shutil.copyfile(root / _WORKFLOW, self._folder / _WORKFLOW)
        for name in _BESIDE_WORKFLOW:
            top = root / name
            for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
                if path.is_file() and "__pycache__" not in path.parts:
                    entity = self._copy(path, path.relative_to(root))
                    if path.suffix in (".smk", ".py"):
                        entity |= {
                            "@type": ["File", "SoftwareSourceCode"], "version": __version__
                        }  # fmt: skip
                        self._beside.append(entity["@id"])

    def add_configs(self, root: Path, given: Sequence[Path]) -> None:
        """Copy the files of the experiments and sites whose results these are."""
        experiments = {name for cell in self._tables.tree.cells for name in cell.experiments}
        configs = list(given) or _configs_of(root, experiments)
        if not configs:
            _LOG.warning("the crate has no configuration: name it with --configfile")
        for path in configs:
            if not path.is_file():
                raise ConfigError(f"--configfile: {path} does not exist")
        files = [(path, f"Experiment: {path.name}") for path in configs]
        sites = {site: root / "config" / "sites" / f"{site}.yaml" for site in self._sites}
        files += [(path, f"Site: {site}") for site, path in sites.items() if path.is_file()]
        for path, about in files:
            inside = path.is_relative_to(root)
            place = path.relative_to(root) if inside else Path("config") / path.name
            self._taken.append(self._copy(path, place, about, _parameter("configuration"))["@id"])

    def add_results(self) -> None:
        """Copy the cells' files, and the tables, figures and pages of experiments."""
        for _, folder in self._tables.tree.experiments:
            place = Path("results") / folder.parent.name / folder.name
            for pattern in _OF_AN_EXPERIMENT:
                for path in sorted(folder.glob(pattern)):
                    if _to_copy(path) and path.suffix != ".log":
                        kind = pattern.partition("/")[0].partition(".")[0]
                        about = f"{folder.name} on {folder.parent.name}: {path.stem}"
                        to = place / path.relative_to(folder)
                        entity = self._copy(path, to, about, _parameter(kind))
                        self._made.setdefault(kind, []).append(entity["@id"])
        for cell in self._tables.tree.cells:
            place = Path("results") / (cell.site or "unknown") / "cells" / cell.cell.id
            for name in _OF_A_CELL:
                if _to_copy(cell.folder / name):
                    target = self._folder / place / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(cell.folder / name, target)
        for site in self._sites:
            self._add_cells(site)
        write_table(self._folder / "cells.csv", self._tables.cells.frame)
        about = "All cells; docs/reference/columns.csv of ddlbench lists the columns"
        self._add_file(Path("cells.csv"), about, _parameter("table"))
        self._made.setdefault("table", []).append("cells.csv")

    def _add_cells(self, site: str) -> None:
        place = f"{_id(Path('results') / site / 'cells')}/"
        count = sum((cell.site or "unknown") == site for cell in self._tables.tree.cells)
        self._entities.append(
            {
                "@id": place,
                "@type": "Dataset",
                "name": f"Cells measured on {site}",
                "description": f"{count} folders with result.json, plan.json and steps.csv each",
                "exampleOfWork": _ref(_parameter("cells")),
            }
        )
        self._parts.append(place)
        self._made.setdefault("cells", []).append(place)

    def _add_readme(self, title: str, about: str) -> None:
        path = self._folder / "README.md"
        path.write_text(
            _README.format(title=title, about=about, version=__version__), encoding="utf-8"
        )
        self._add_file(Path(path.name), "What is in this crate", "")["about"] = _ref("./")

    def finish(self) -> None:
        self._add_readme(*self._named())
        began, ended = _period(self._tables.tree.cells)
        packages = list(_packages(cell.result.provenance for cell in self._tables.tree.cells
                                  if cell.result is not None))  # fmt: skip
        graph = [
            *self._heads(ended),
            self._workflow(packages),
            self._run(began, ended),
            self._agent(),
            _licence(self._study.licence),
            _licence(_LICENCE_OF_WORKFLOW),
            {"@id": "#ddlbench-authors", "@type": "Organization", "name": "The ddlbench authors"},
            *({"@id": url, "@type": "CreativeWork", "name": name, "version": url.rpartition("/")[2]}
              for url, name in _PROFILES.items()),
            _language(),
            *packages,
            *self._parameters(),
            *self._entities,
        ]  # fmt: skip
        path = self._folder / "ro-crate-metadata.json"
        once = {entity["@id"]: _compact(entity) for entity in graph}
        write_json(path, {"@context": _CONTEXT, "@graph": list(once.values())})

    def _named(self) -> tuple[str, str]:
        names = dict.fromkeys(name for cell in self._tables.tree.cells for name in cell.experiments)
        frame = self._tables.cells.frame
        networks = ", ".join(sorted(set(frame["network"])))
        measured = int((frame["status"] == "ok").sum())
        return f"ddlbench: {', '.join(names) or 'cells'}", (
            f"Measured training times of {networks} with ways to parallelise: "
            f"{counted(len(frame), 'cell')}, {measured} of them with a measurement."
        )

    def _heads(self, ended: str) -> Iterator[Entity]:
        name, about = self._named()
        yield {
            "@id": "ro-crate-metadata.json",
            "@type": "CreativeWork",
            "conformsTo": [_ref(_CRATE), _ref(_WORKFLOW_CRATE)],
            "about": _ref("./"),
        }
        yield {
            "@id": "./",
            "@type": "Dataset",
            "name": name,
            "description": about,
            "datePublished": datetime.now(UTC).isoformat(timespec="seconds"),
            "dateModified": ended,
            "license": _ref(_licence(self._study.licence)["@id"]),
            "author": _ref(self._agent()["@id"]),
            "conformsTo": [_ref(url) for url in _PROFILES],
            "mainEntity": _ref(_WORKFLOW),
            "mentions": [_ref("#run")],
            "hasPart": [_ref(_WORKFLOW), *map(_ref, self._parts)],
            "keywords": "distributed deep learning, benchmark, performance",
        }

    def _workflow(self, packages: Sequence[Entity]) -> Entity:
        commits = sorted(set(self._tables.cells.frame["commit"]) - {""})
        return {
            "@id": _WORKFLOW,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": "ddlbench",
            "description": "Measures, predicts and chooses how to parallelise DNN training",
            "conformsTo": _ref(f"{_BIOSCHEMAS}/ComputationalWorkflow/1.0-RELEASE"),
            "programmingLanguage": _ref(_LANGUAGE),
            "version": " ".join([__version__, *commits]),
            "license": _ref(_licence(_LICENCE_OF_WORKFLOW)["@id"]),
            "creator": _ref("#ddlbench-authors"),
            "encodingFormat": "text/x-python",
            "softwareRequirements": [_ref(package["@id"]) for package in packages],
            "hasPart": [_ref(place) for place in self._beside],
            "input": [_ref(_parameter("configuration"))] if self._taken else [],
            "output": [_ref(_parameter(kind)) for kind in self._made],
        }

    def _run(self, began: str, ended: str) -> Entity:
        made = [_ref(place) for places in self._made.values() for place in places]
        return {
            "@id": "#run",
            "@type": "CreateAction",
            "name": f"Measurement with ddlbench {__version__}",
            "description": "From the first cell's start to the last one's end",
            "instrument": _ref(_WORKFLOW),
            "agent": _ref(self._agent()["@id"]),
            "startTime": began,
            "endTime": ended,
            "actionStatus": "http://schema.org/CompletedActionStatus",
            "object": [_ref(place) for place in self._taken],
            "result": made,
        }

    def _agent(self) -> Entity:
        match = _AUTHOR.fullmatch(self._study.author.strip())
        if match is None:
            return {"@id": "#author", "@type": "Person", "name": printable(self._study.author)}
        return {"@id": match["address"], "@type": "Person", "name": match["name"].strip()}

    def _parameters(self) -> Iterator[Entity]:
        if self._taken:
            yield _formal("configuration", "Files of experiments and sites", self._taken)
        for kind, files in self._made.items():
            yield _formal(kind, f"Output of the workflow: {kind}", files)

    def _copy(self, path: Path, place: Path, about: str = "", parameter: str = "") -> Entity:
        target = self._folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        return self._add_file(place, about, parameter)

    def _add_file(self, place: Path, about: str, parameter: str) -> Entity:
        media = _MEDIA.get(place.suffix) or mimetypes.guess_type(place.name)[0] or "text/plain"
        entity: Entity = {
            "@id": _id(place),
            "@type": "File",
            "name": place.name,
            "contentSize": str((self._folder / place).stat().st_size),
            "encodingFormat": media,
        }
        if about:
            entity["description"] = about
        if parameter:
            entity["exampleOfWork"] = _ref(parameter)
        self._entities.append(entity)
        self._parts.append(entity["@id"])
        return entity


def _to_copy(path: Path) -> bool:
    """A file of the results; a link may lead to what nobody means to publish."""
    return path.is_file() and not path.is_symlink()


def _licence(name: str) -> Entity:
    address = name if name.startswith("http") else f"https://spdx.org/licenses/{quote(name)}"
    return {"@id": address, "@type": "CreativeWork", "name": name}


def _compact(entity: Entity) -> Entity:
    """Compact JSON-LD: one value instead of a list of one, no empty list."""
    whole = {key: value for key, value in entity.items() if value != []}
    return {
        key: value[0] if isinstance(value, list) and len(value) == 1 else value
        for key, value in whole.items()
    }


def _configs_of(root: Path, experiments: set[str]) -> list[Path]:
    """Files below config/ that declare one of these experiments."""
    configs = []
    folder = root / "config"
    for path in (*sorted(folder.glob("*.yaml")), *sorted(folder.glob("*/*.yaml"))):
        try:
            declared = read_yaml(path).get("experiment")
        except ConfigError:
            continue
        if declared in experiments:
            configs.append(path)
    return configs


def _period(cells: Iterable[TreeCell]) -> tuple[str, str]:
    """When the first cell began and the last one ended, as far as results tell."""
    began, ended = [], []
    for cell in cells:
        if cell.result is None or cell.result.provenance.created is None:
            continue
        try:
            end = datetime.fromisoformat(cell.result.provenance.created)
        except ValueError:
            continue
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
        ended.append(end)
        began.append(end - timedelta(seconds=cell.result.elapsed_s))
    now = datetime.now(UTC)
    return tuple(
        end.isoformat(timespec="seconds")
        for end in (min(began, default=now), max(ended, default=now))
    )  # type: ignore[return-value]


def _packages(provenances: Iterable[Provenance]) -> Iterator[Entity]:
    """Each version of each package that measured a cell."""
    versions = {
        (printable(name), printable(version))
        for provenance in provenances
        for name, version in (provenance.packages or {}).items()
    }
    for name, version in sorted(versions):
        home = _HOMES.get(name) or f"https://pypi.org/project/{quote(name)}/"
        yield {
            "@id": f"#{quote(name)}-{quote(version)}",
            "@type": "SoftwareApplication",
            "name": name,
            "softwareVersion": version,
            "url": home,
        }


def _language() -> Entity:
    return {
        "@id": _LANGUAGE,
        "@type": "ComputerLanguage",
        "name": "Snakemake",
        "identifier": _ref("https://doi.org/10.1093/bioinformatics/bts480"),
        "url": _ref("https://snakemake.readthedocs.io"),
    }


def _formal(kind: str, about: str, files: Sequence[str]) -> Entity:
    return {
        "@id": _parameter(kind),
        "@type": "FormalParameter",
        "conformsTo": _ref(f"{_BIOSCHEMAS}/FormalParameter/1.0-RELEASE"),
        "additionalType": "Dataset" if kind == "cells" else "File",
        "name": kind,
        "description": about,
        "multipleValues": "True",
        "workExample": [_ref(place) for place in files],
    }


def _parameter(kind: str) -> str:
    return f"#{kind}"


def _ref(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _id(place: Path) -> str:
    """The path of a file in the crate, as an address relative to it."""
    return quote(place.as_posix())
