"""Files that others look for: each is there, and says what is true."""

import re
from pathlib import Path

import yaml

import ddlbench

ROOT = Path(__file__).parents[3]


def test_the_version_is_one():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == ddlbench.__version__
    assert citation["license"] == "Apache-2.0"
    assert f"## {ddlbench.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_map_of_the_documents_has_every_page():
    folder = ROOT / "docs"
    pages = {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")}
    linked = set(re.findall(r"\]\(([^)#]+\.md)", (folder / "README.md").read_text("utf-8")))
    assert {page for page in linked if not (folder / page).is_file()} == set()
    assert pages - linked - {"README.md"} == set()


def test_the_licence_is_declared():
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_a_killed_workflow_simply_starts_again():
    """hardening B3: Snakemake's lock of the folder stayed; the leases of cells do its work."""
    for name in ("local", "slurm"):
        profile = yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text("utf-8"))
        assert profile["nolock"] is True
