"""The states of a cell, and reasons with codes."""

from __future__ import annotations

import json
import pickle

import pytest

from ddlbench.experiment.status import REASON_CODES, Reason, Status, reason_code, reason_of


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


def test_the_reason_of_an_exception_keeps_its_code() -> None:
    assert reason_of(ValueError(Reason("hang", "it hangs")), "exception").code == "hang"
    plain = reason_of(ValueError("wrong"), "exception")
    assert (plain, plain.code) == ("wrong", "exception")


def test_codes_are_words_with_a_meaning() -> None:
    for code, meaning in REASON_CODES.items():
        assert code.isidentifier()
        assert code == code.lower()
        assert meaning
    assert not {status.value for status in Status if status != Status.UNSUPPORTED} & set(
        REASON_CODES
    )
