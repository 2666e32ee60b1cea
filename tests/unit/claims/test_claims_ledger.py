"""The ledger and its command, on made-up results and on the kept tables."""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd
import pytest
from click.testing import CliRunner

from ddlbench.claims.evidence import COLUMNS, rows_of_tables
from ddlbench.claims.ledger import judge, read_claims
from ddlbench.cli import commands
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paper import read_papers
from ddlbench.experiment.paths import project_root

LEDGER = read_claims()
KEPT = project_root() / "docs" / "validation"


def test_there_are_many_claims_of_every_source() -> None:
    assert len(LEDGER) >= 60
    papers = Counter(claim.experiment.partition("/")[0] for claim in LEDGER)
    assert set(papers) == {"ddlbench", "thesis", "paradl", "networking"}
    assert min(papers.values()) >= 5


def test_every_claim_names_a_figure_that_decides_it() -> None:
    figures = {file.paper.figure for file in read_papers()}
    assert {claim.experiment for claim in LEDGER} <= figures


def test_speeds_and_predictions_of_a_studys_cells(tmp_path) -> None:
    path = tmp_path / "cells.csv"
    pd.DataFrame(
        {
            "cell_id": ["d/n/sequential/1x1/batch_size=8/rep0", "d/n/ddp/1x2/batch_size=8/rep0"],
            "dataset": "d", "network": "n", "strategy": ["sequential", "ddp"],
            "geometry": ["1x1", "1x2"], "measured_step_s": [1.0, 0.5],
            "measured_low_s": [0.9, 0.4], "measured_high_s": [1.1, 0.6],
            "predictor": "ddlbench", "predicted_step_s": [1.1, 0.45],
        }
    ).to_csv(path, index=False)  # fmt: skip
    rows = rows_of_tables([path], "CPU")
    assert list(rows.columns) == [*COLUMNS]
    speed = rows[rows["kind"] == "speed"].set_index("strategy")
    assert speed.loc["ddp", "samples_per_s"] == pytest.approx(16)
    assert speed.loc["ddp", "speedup"] == pytest.approx(2.0)
    assert speed.loc["ddp", "efficiency"] == pytest.approx(1.0)
    error = rows[rows["kind"] == "prediction"].set_index("strategy")
    assert error.loc["sequential", "signed_error"] == pytest.approx(0.1)
    assert error.loc["ddp", "absolute_error_low"] == 0  # the interval holds the prediction
    assert error.loc["ddp", "absolute_error_high"] == pytest.approx(0.25)


def test_a_table_of_another_kind_is_refused(tmp_path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="neither speedup, samples_per_s nor predicted_step_s"):
        rows_of_tables([path], "CPU")


def test_kept_tables_decide_claims() -> None:
    rows = rows_of_tables([KEPT / "emulated" / "cells.csv"], "emulated accelerators")
    verdicts = {one.claim.id: one.found.verdict for one in judge(LEDGER, rows)}
    assert verdicts["pipedream-beats-model-parallelism"] == "holds"
    assert verdicts["highres-scales-best"] == "not measured"


def test_the_command_prints_the_ledger_and_one_claim() -> None:
    table = str(KEPT / "emulated" / "cells.csv")
    told = CliRunner().invoke(commands, ["claims", "--tables", table, "--json"])
    assert told.exit_code == 0, told.output
    assert len(json.loads(told.stdout)) == len(LEDGER)
    assert {"claim", "verdict", "source", "n", "here"} <= json.loads(told.stdout)[0].keys()
    shown = CliRunner().invoke(commands, ["claims", "--tables", table]).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    one = CliRunner().invoke(commands, ["claims", "horovod-linear", "--tables", table]).stdout
    assert "DDLBench Eq. 1" in one
    with pytest.raises(ConfigError, match="did you mean 'horovod-linear'"):
        CliRunner().invoke(commands, ["claims", "horovod-liner"], catch_exceptions=False)


def test_a_site_without_results_has_nothing_measured(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    ended = CliRunner().invoke(commands, ["claims", "--site", "local"])
    assert ended.exit_code == 0, ended.output
    assert f"{len(LEDGER)} claims: {len(LEDGER)} not measured" in " ".join(ended.output.split())
