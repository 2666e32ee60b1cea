"""Files that others look for: each is there, and says what is true."""

import re
from pathlib import Path

import pytest
import yaml

import ddlbench
from ddlbench.experiment import registry

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


@pytest.mark.parametrize(
    ("names", "page"),
    [(registry.PREDICTORS, "prediction.md"), (registry.STRATEGIES, "strategies.md")],
)
def test_the_page_of_a_kind_of_part_names_each(names, page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


def _anchors(page: Path) -> set[str]:
    """Names of a page's headings, as a forge and the web site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_every_link_of_the_documents_leads_somewhere():
    """`make docs` checks the same with mkdocs, which these tests do not need."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/*.md")]
    pages += [ROOT / "config" / "README.md", ROOT / "envs" / "README.md"]
    broken = set()
    for page in pages:
        text = re.sub(r"`[^`\n]+`", "", page.read_text("utf-8"))
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = page if not path else page.parent / path
            if re.match(r"[a-z]+:", link):
                continue
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.add(f"{page.relative_to(ROOT)}: {link}")
    assert broken == set()


def test_the_licence_is_declared():
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_a_killed_workflow_simply_starts_again():
    """hardening B3: Snakemake's lock of the folder stayed; the leases of cells do its work."""
    for name in ("local", "slurm"):
        profile = yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text("utf-8"))
        assert profile["nolock"] is True
