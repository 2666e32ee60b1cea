"""The long studies: every cell that they name can run, and what they measured can be kept."""

from __future__ import annotations

import ast
import importlib.util
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from ddlbench.common.entry_points import why_no_target
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.links import read_links
from ddlbench.experiment.profile import Profile, read_profile
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import read_result
from ddlbench.experiment.site import load_site, parse_site
from ddlbench.planning.matrix import MatrixRow, expand

ROOT = Path(__file__).resolve().parents[2]
CASES, CANDIDATES = 40, 8
LOCAL_CPU = {"device": "cpu", "launcher": "local", "devices_per_node": 1}


def rows_of(experiment: dict, monkeypatch: pytest.MonkeyPatch) -> list[MatrixRow]:
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    return expand(parse_experiment(experiment, "the study"), load_site("accelerators"))


@pytest.mark.parametrize("folder", ["validation", "benchmarks", "workflow/scripts"])
def test_what_a_script_imports_of_ddlbench_is_there(folder):
    imports = {
        (node.module, each.name, path.name)
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ddlbench.")
        for each in node.names
    }
    assert imports
    missing = [
        (script, fault)
        for module, name, script in sorted(imports)
        if (fault := why_no_target(f"{module}:{name}"))
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert not missing


def test_what_the_study_of_terms_replaces_is_there(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    ablation = __import__("ablation")
    places = [place for term in ablation.TERMS.values() for place in term]
    assert [name for owner, name, _ in places if not hasattr(owner, name)] == []


def test_the_benchmark_of_questions_has_profiles(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "questions"))
    project, site = __import__("project"), load_site("accelerators")
    made = project._profiles(ROOT / "config" / "accelerators")
    networks = {Profile.from_dict(project.at_site(values, site)).network for values in made}
    assert {"vgg11", "resnet50", "gpt-tiny"} <= networks


def test_a_choice_is_asked_for_in_enough_cases_of_enough_candidates(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    emulated = __import__("emulated")
    rows = rows_of(emulated.CASES, monkeypatch)
    assert [row.unsupported for row in rows if row.unsupported] == []
    cells = [row.cell for row in rows if row.cell.strategy != BASE]
    cases = Counter((c.network, c.batch_size, c.geometry, c.fabric) for c in cells)
    assert len(cases) >= CASES
    assert min(cases.values()) >= CANDIDATES


def test_what_a_study_measured_comes_back_from_its_archive(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    bed_study = __import__("bed_study")
    monkeypatch.setattr(bed_study, "_WORK", tmp_path / "work")
    monkeypatch.setattr(bed_study, "_PARTS", ())
    measured = bed_study.Study("measured", {"experiment": "one"})
    result = Path("results", "site", "cells", "mnist", "mlp", "result.json")
    for name in (result, result.with_name("job.log"), Path("results", "site", "links.json")):
        path = measured.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name.name)
    assert bed_study.has_results("measured")
    measured.archive(tmp_path / "kept" / "measured.tar.xz")

    again = bed_study.Study("again", {"experiment": "one"})
    assert not bed_study.has_results("again")
    (again.folder / "results").mkdir()
    (again.folder / "results" / "older.json").touch()
    again.unpack(tmp_path / "kept" / "measured.tar.xz")
    actual = {path.name for path in (again.folder / "results").rglob("*") if path.is_file()}
    assert actual == {"result.json", "links.json"}  # logs, which nothing reads, are not kept
    assert (again.folder / result).read_text() == "result.json"


def test_a_study_that_was_never_measured_says_so(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    bed_study = __import__("bed_study")
    monkeypatch.setattr(bed_study, "_WORK", tmp_path)
    monkeypatch.setattr(bed_study, "_PARTS", ())
    study = bed_study.Study("new", {"experiment": "one"})
    with pytest.raises(SystemExit, match=r"measured\.tar\.xz is missing: measure the study first"):
        study.unpack(bed_study.ROOT / "measured.tar.xz")


def test_a_ring_sends_a_message_once_over_netem_and_waits_for_two_delays(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    netem = __import__("netem")
    # 20 Mbit/s carry 2.5 MB a second; two delays of 20 ms.
    assert netem.least_all_reduce_s(2_500_000) == pytest.approx(1.04)
    parsed = parse_site({**netem.SITE_KEYS, **LOCAL_CPU}, Path("netem-guest.yaml"))
    rows = expand(parse_experiment(netem.EXPERIMENT, "the study"), parsed)
    assert [row.unsupported for row in rows if row.unsupported] == []


@pytest.mark.parametrize(
    "kept", sorted((ROOT / "docs").rglob("measured.tar.xz")), ids=lambda path: path.parent.name
)
def test_what_was_kept_is_of_the_form_that_is_read(kept: Path, tmp_path: Path) -> None:
    """Results, links and profiles of studies whose tables ``--report`` makes anew."""
    readers = {"result.json": read_result, "links.json": read_links, "profile.json": read_profile}
    with tarfile.open(kept) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 or later
        archive.extractall(tmp_path)
    files = [path for path in tmp_path.rglob("*.json") if path.name in readers]
    assert any(path.name == "result.json" for path in files)
    for path in files:
        readers[path.name](path)
