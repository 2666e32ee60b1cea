"""Links of pipelines side by side: one pipeline of each kind is replayed."""

from __future__ import annotations

import predict_factory as make
import pytest

from ddlbench.predict.prediction import ask, predictor_of
from ddlbench.predict.predictors.pipeline_links import Kinds, PipelineLinks


@pytest.mark.parametrize(
    ("nodes", "slow", "balance", "kinds"),
    [
        # Pairs of devices on two nodes. All are alike; the second pair of the second node is slow.
        ([0] * 4 + [1] * 4, {}, "2+2", [4]),
        ([0] * 4 + [1] * 4, {(6, 7): 1e5, (7, 6): 1e5}, "2+2", [3, 1]),
        # A device a node: links of two nodes, which are alike, and not.
        ([0, 1, 2, 3], {}, "2+2", [2]),
        ([0, 1, 2, 3], {(0, 1): 1e5}, "2+2", [1, 1]),
        # Three devices each on nodes of two: the node in the middle has a part of both.
        ([0, 0, 1, 1, 2, 2], {}, "2+1+1", [1, 1]),
    ],
)
@pytest.mark.parametrize("strategy", ["pipe-gpipe", "pipe-1f1b", "pipe-zb"])
def test_one_pipeline_of_a_kind_stands_for_all(strategy, nodes, slow, balance, kinds) -> None:
    """As if every pipeline were replayed."""
    geometry = f"{len(set(nodes))}x{nodes.count(0)}"
    replicas = len(nodes) // len(balance.split("+"))
    options = {"chunks": 4, "replicas": replicas}
    if strategy == "pipe-zb":
        options["stages_per_rank"] = 1
    options["balance"] = balance
    plan = make.plan(strategy, geometry, 32 * replicas, options=options)
    sums = [
        make.sweep(0.006, 1e9, 2, level="network", nodes=count, devices_per_node=1)
        for count in (2, 4)
    ]
    links = make.table(
        make.pair(nodes, bandwidth=1e6, slow=slow), sweeps=(make.sweep(0.006, 1e9, 4), *sums)
    )
    seen: list[Kinds] = []
    sort = PipelineLinks.kinds

    def sorted_by_links(*arguments) -> Kinds:
        seen.append(sort(*arguments))
        return seen[-1]

    def apart(self, events, ranks, device_kind) -> Kinds:
        return Kinds(tuple(range(replicas)), (1,) * replicas, ranks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineLinks, "kinds", sorted_by_links)
        actual = ask(predictor_of("ddlbench"), make.workload(), links, plan)
        patch.setattr(PipelineLinks, "kinds", apart)
        whole = ask(predictor_of("ddlbench"), make.workload(), links, plan)
    assert [list(entry.counts) for entry in seen] == [kinds]
    assert actual.step_s == pytest.approx(whole.step_s)
    assert actual.communication_s == pytest.approx(whole.communication_s)
    assert actual.exposed_communication_s == pytest.approx(whole.exposed_communication_s)
