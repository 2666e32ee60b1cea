"""The ledger and its command, on made-up results and on the kept tables."""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd
import pytest
from click.testing import CliRunner

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.config import read_papers
from ddlbench.experiment.paths import project_root
from ddlbench.report.kept_verdicts import ACCELERATOR, CPU, KNOWN_TO
from ddlbench_claims.evidence import rows_of_site, rows_of_tables
from ddlbench_claims.ledger import DECIDED, VERDICTS, judge, read_claims

LEDGER = read_claims()
DOCS = project_root() / "docs"
EMULATED = DOCS / "validation" / "emulated" / "cells.csv"


def test_there_are_many_claims_of_every_source() -> None:
    assert len(LEDGER) >= 80
    papers = Counter(claim.experiment.partition("/")[0] for claim in LEDGER)
    assert set(papers) == {"ddlbench", "thesis", "paradl", "networking"}
    assert min(papers.values()) >= 5


def test_every_claim_names_a_figure_that_decides_it() -> None:
    figures = {file.paper.figure for file in read_papers()}
    assert {claim.experiment for claim in LEDGER} <= figures


def test_claims_on_torchgpipe_need_partitions_that_compute_at_once() -> None:
    for claim in LEDGER:
        strategies = claim.test.where.get("strategy", ())
        asks = claim.test.metric and "gpipe" in ([strategies] if isinstance(strategies, str)
                                                 else strategies)  # fmt: skip
        assert not asks or claim.needs.at_once, claim.id


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id": "A b"}, "claims.0.id: 'A b' does not fit (Its name, of small letters"),
        ({"test": {"kind": "bond"}}, "claims.0.test.kind: 'bond' is not allowed; write compare, "),
        ({"test": {"kind": "bound", "metric": "speedp"}}, "claim x: unknown metric 'speedp'; did"),
        ({"test": {"kind": "bound", "by": ["datset"]}}, "claim x: unknown column 'datset'; did"),
        ({"needs": {"devic": "gpu"}}, "claims.0.needs: 'devic' is not a key here; did you mean"),
        ({"needs": {"device": "cpu"}}, "claims.0.needs.device: 'cpu' is not allowed; write gpu,"),
    ],
)
def test_a_wrong_claim_is_a_sentence(changes, sentence, monkeypatch) -> None:
    entry = {"id": "x", "claim": "it is", "source": "s", "experiment": "e", "hardware": "GPUs"}
    values = {"claims": [{**entry, "test": {"kind": "bound"}, **changes}]}
    monkeypatch.setattr("ddlbench_claims.ledger.read_yaml", lambda _: values)
    with pytest.raises(ConfigError) as caught:
        read_claims()
    assert f"claims.yaml: {sentence}" in str(caught.value)


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    rows = rows_of_tables([EMULATED])
    return {judgement.claim.id: judgement.finding.verdict for judgement in judge(LEDGER, rows)}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("pipedream-beats-model-parallelism", "holds"),
        ("gpipe-bubble", "holds"),  # by each row's own micro-batches, defaults included
        ("highres-scales-best", "not measured"),
        ("gpipe-best-one-node", "not testable here"),
        ("resnet-ten-percent-loss-no-step", "not testable here"),
    ],
)
def test_kept_tables_decide_claims(verdicts, claim, verdict) -> None:
    assert verdicts[claim] == verdict


def test_kept_verdicts_are_of_one_bed_and_say_on_what_they_rest() -> None:
    kept = pd.read_csv(DOCS / "papers" / "claims.csv")
    assert set(kept["bed"]) <= set(KNOWN_TO)
    assert set(kept["verdict"]) <= set(VERDICTS)
    assert set(kept["id"]) == {claim.id for claim in LEDGER}
    decided = kept["verdict"].isin(DECIDED)
    assert kept.loc[decided, "rests_on"].notna().all()
    assert kept.loc[kept["verdict"] == "not testable here", "lacks"].notna().all()
    assert not kept.duplicated(["id", "bed"]).any()


def summary(strategy: str, speed: float, processors: str, site: str) -> dict:
    return {
        "site": site, "configuration": f"mnist/vgg16/{strategy}/1x4/batch_size=32",
        "dataset": "mnist", "network": "vgg16", "strategy": strategy, "geometry": "1x4",
        "batch_size": 32, "fabric": "default", "status": "ok", "n": 1, "interval_of": "steps",
        "samples_per_s": speed, "speedup": speed / 10, "device_kind": "cpu",
        "processors": processors, "notes": processors,
    }  # fmt: skip


def test_a_sites_rows_know_their_bed(tmp_path) -> None:
    folder = tmp_path / "mine" / "experiment" / "tables"
    folder.mkdir(parents=True)
    device = "emulated compute: times of one-core, 4 times slower"
    made = [summary("horovod", 30.0, device, "mine"), summary("ddp", 20.0, "AMD EPYC", "mine")]
    pd.DataFrame(made).to_csv(folder / "summary.csv", index=False)
    rows = rows_of_site("mine", tmp_path)
    assert dict(zip(rows["strategy"], rows["bed"], strict=True)) == {
        "horovod": ACCELERATOR, "ddp": CPU,
    }  # fmt: skip


def test_the_command_prints_the_ledger_and_one_claim() -> None:
    table = str(EMULATED)
    ended = CliRunner().invoke(commands, ["claims", "--tables", table, "--json"])
    assert ended.exit_code == 0, ended.output
    assert len(json.loads(ended.stdout)) == len(LEDGER)
    assert {"claim", "verdict", "bed", "lacks", "rests_on"} <= json.loads(ended.stdout)[0].keys()
    for more in (["--all"], ["horovod-fastest"]):
        shown = CliRunner().invoke(commands, ["claims", "--tables", table, *more])
        assert shown.exit_code == 0, shown.output
        assert max(map(len, shown.stdout.splitlines())) <= 80
    text = CliRunner().invoke(commands, ["claims", "gpipe-bubble", "--tables", table]).stdout
    assert "DDLBench Eq. 2" in text
    assert "one run a cell" in text
    with pytest.raises(ConfigError, match="did you mean 'eq1-horovod'"):
        CliRunner().invoke(commands, ["claims", "eq1-horovd"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="did you mean 'thesis'"):
        CliRunner().invoke(commands, ["claims", "--paper", "thesi"], catch_exceptions=False)


def test_a_site_without_results_has_nothing_measured(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    ended = CliRunner().invoke(commands, ["claims", "--site", "local"])
    assert ended.exit_code == 0, ended.output
    assert f"{len(LEDGER)} not measured" in " ".join(ended.output.split())
