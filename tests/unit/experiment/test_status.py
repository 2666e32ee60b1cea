"""The states of a cell, and reasons with codes."""

from __future__ import annotations

import ast
import csv
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddlbench
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.status import Reason, Status, reason_code, reason_of
from ddlbench.runtime.rank_report import RankFailure


def test_a_reason_is_its_sentence_and_knows_its_code() -> None:
    reason = Reason("uneven_batch", "a mini-batch of 5 does not divide over 2 workers")
    assert reason == "a mini-batch of 5 does not divide over 2 workers"
    assert json.loads(json.dumps(reason)) == str(reason)
    assert reason.code == "uneven_batch"
    assert pickle.loads(pickle.dumps(reason)).code == "uneven_batch"


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (None, "ok", None),
        ("", "ok", None),
        ("a sentence of somebody else", "unsupported", "unsupported"),
        (Reason("hang", "no step finished"), "failed", "hang"),
    ],
)
def test_a_plain_sentence_counts_by_its_status(
    reason: str | None, status: str, code: str | None
) -> None:
    assert reason_code(reason, status) == code


def test_a_reason_may_name_a_file_that_is_no_utf_8() -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    failure = RankFailure(
        rank=0,
        status=Status.FAILED,
        reason=Reason("exception", f"{name} is no image"),
        reason_code="exception",
    )
    assert failure.to_dict()["reason"] == "caf\\udce9.jpg is no image"


def test_the_reason_of_an_exception_keeps_its_code() -> None:
    assert reason_of(ValueError(Reason("hang", "it hangs")), "exception").code == "hang"
    plain = reason_of(ValueError("wrong"), "exception")
    assert (plain, plain.code) == ("wrong", "exception")


def reason_codes() -> dict[str, str]:
    """The documented codes, each with its meaning."""
    rows = csv.reader((project_root() / "docs/reference/reasons.csv").read_text().splitlines())
    return {code: meaning for code, meaning in rows if code != "code"}


def test_codes_are_words_with_a_meaning() -> None:
    codes = reason_codes()
    for code, meaning in codes.items():
        assert code.isidentifier()
        assert code == code.lower()
        assert meaning
    assert not {status.value for status in Status if status != Status.UNSUPPORTED} & set(
        reason_codes()
    )


def test_every_code_that_a_module_writes_has_a_meaning() -> None:
    used = {
        code
        for path in Path(ddlbench.__file__).parent.rglob("*.py")
        for code in codes_in(ast.parse(path.read_text("utf-8")))
    }
    assert used - set(reason_codes()) == set()


def test_no_module_spells_a_state_itself() -> None:
    """Words that mean only a cell's state stand in the one enum; others import it."""
    words = {state.value for state in Status} - {Status.OK, Status.UNSUPPORTED}
    spelt = {
        f"{path.name}: {node.value}"
        for path in Path(ddlbench.__file__).parent.rglob("*.py")
        if path.name != "status.py" or path.parent.name != "experiment"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in words
    }
    assert spelt == {"training_runs.py: failed"}  # a word of a published table


def codes_in(tree: ast.Module) -> Iterator[str]:
    """Codes that a module's calls of Reason, reason_of and Unsupported are given."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        given = {"Reason": call.args[:1], "reason_of": call.args[1:]}.get(name, [])
        given += [word.value for word in call.keywords if word.arg == "code"]
        yield from (word.value for word in given if isinstance(word, ast.Constant))
