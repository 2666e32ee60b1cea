"""A name says what it holds: CONTRIBUTING lists words that say nothing."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "src", "plugins/*/src", "workflow", "validation", "benchmarks", "tests", "plugins/*/tests",
)  # fmt: skip
VAGUE = {"found", "asked", "said", "told", "own", "one", "behind"}


def test_no_name_is_vague() -> None:
    files = [
        file for folder in FOLDERS for part in ROOT.glob(folder) for file in part.rglob("*.py")
    ]
    vague = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in files
        for line, name in _names(ast.parse(file.read_text(encoding="utf-8")))
        if name.strip("_").lower() in VAGUE
    ]
    assert len(files) > 700
    assert vague == []


def _names(tree: ast.Module):
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
