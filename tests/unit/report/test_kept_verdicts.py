"""The kept verdicts: a row a claim and bed, for the page of all figures."""

from __future__ import annotations

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.report.kept_verdicts import kept_verdicts


def test_verdicts_of_each_bed_are_read_with_their_numbers(tmp_path) -> None:
    path = tmp_path / "claims.csv"
    path.write_text(
        "experiment,claim,verdict,bed,lacks,rests_on,cases,share,value\n"
        "ddlbench/fig4,Horovod wins.,holds,CPU,,one run a cell,4,0.75,1.234\n"
        "ddlbench/fig4,Horovod wins.,not testable here,emulated GPU,real GPUs,,0,0,\n"
    )
    first, second = kept_verdicts(path)
    assert (first.figure, first.claim) == ("ddlbench/fig4", "Horovod wins.")
    assert (first.verdict, first.bed, first.numbers) == (
        "holds",
        "CPU",
        "3 of 4, median 1.2; one run a cell",
    )
    assert (second.verdict, second.numbers) == ("not testable here", "lacks real GPUs")


def test_without_a_table_there_are_none(tmp_path) -> None:
    assert kept_verdicts(tmp_path / "claims.csv") == []


@pytest.mark.parametrize(
    ("text", "sentence"), [("claim,verdict\na,holds\n", "no column 'experiment'"), ("", "no table")]
)
def test_a_table_that_tells_no_verdicts_is_refused(tmp_path, text, sentence) -> None:
    path = tmp_path / "claims.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        kept_verdicts(path)


def test_the_repository_keeps_verdicts_of_figures() -> None:
    assert all("/" in row.figure and row.verdict for row in kept_verdicts())
