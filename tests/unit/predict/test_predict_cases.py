"""Every case of a matrix gets one ranking."""

import predict_factory as make
import pytest
from predict_results import row

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.recommend import COLUMNS, recommendations


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: range(4))
    return load_site("local")


def test_a_ranking_a_case_whatever_strategies_the_matrix_has(tmp_path, site):
    make.write_site(tmp_path, make.profile(), make.links())
    cells = [
        make.cell("sequential", "1x1", 32),
        make.cell("ddp", "1x4", 32),
        make.cell("horovod", "1x4", 32),
        make.cell("ddp", "1x2", 32),
        make.cell("ddp", "1x2", 32, repeat=1),
    ]
    refused = MatrixRow(make.cell("gpipe", "2x2"), None, "cannot span 2")
    table = recommendations([*map(row, cells), refused], site, tmp_path)
    assert tuple(table.columns) == COLUMNS
    assert set(table["devices_per_node"]) == {2, 4}
    for _, case in table.groupby("devices_per_node"):
        assert case["recommended"].sum() == 1
        best = case[case["recommended"]].iloc[0]
        ranked = case[case["place"].notna()]
        assert best["place"] == 1
        assert best["predicted_step_s"] == ranked["predicted_step_s"].min()
        assert not case.duplicated("strategy").any()
        assert {"horovod", "ddp", "gpipe"} <= set(ranked["strategy"])


def test_a_missing_profile_is_one_sentence(tmp_path, site):
    with pytest.raises(ConfigError, match="there is no profile of vgg11 on mnist"):
        recommendations([row(make.cell("ddp"))], site, tmp_path)


def test_no_case_is_an_empty_table(tmp_path, site):
    table = recommendations([row(make.cell("sequential", "1x1"))], site, tmp_path)
    assert table.empty
    assert tuple(table.columns) == COLUMNS
