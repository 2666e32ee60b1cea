"""Views of profiles and links: interpolation, hops, all-reduce times, and what is refused."""

import dataclasses

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import Timing
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.links import Links
from ddlbench.experiment.profile import InvalidProfile
from ddlbench.experiment.site import Interconnect, load_site
from ddlbench.interconnect.measure import given_parts
from ddlbench.planning.pipeline_stages import even_costs
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict import inputs as inputs_module
from ddlbench.predict.inputs import Inputs, open_links, open_workload
from ddlbench.predict.links import LinkTable


def test_timing_is_measured_where_it_was_and_a_line_elsewhere():
    timing = Timing.through([(8, 0.9), (16, 1.7), (32, 3.4)], "a layer")
    assert timing.at(16) == 1.7
    assert timing.at(24) == pytest.approx(timing.fixed_s + 24 * timing.per_sample_s)
    assert timing.at(24) == pytest.approx(2.5, rel=0.05)
    assert not timing.extrapolates(24)
    assert timing.extrapolates(64)


def test_timing_has_no_negative_coefficient():
    steep = Timing.through([(1, 0.1), (2, 0.4), (4, 1.6)], "a layer")
    falling = Timing.through([(1, 1.0), (2, 0.5), (4, 0.2)], "a layer")
    assert steep.fixed_s == 0
    assert falling.per_sample_s == 0
    assert Timing.through([(4, 2.0)], "a layer").at(8) == pytest.approx(4.0)
    assert Timing.through([(4, 0.0)], "a layer").at(8) == 0


@pytest.mark.parametrize(("points", "says"), [([], "no batch size"), ([(1, -1.0)], "below zero")])
def test_a_layer_without_times_is_refused(points, says):
    with pytest.raises(ConfigError, match=says):
        Timing.through(points, "a layer")


def test_a_profile_without_blocks_is_to_be_measured_again():
    values = make.profile()
    del values["blocks"]
    with pytest.raises(ConfigError, match="holds no blocks; measure the profile again"):
        _ = make.Workload(values).blocks


def test_without_whole_steps_a_step_is_the_sum_of_its_blocks():
    step = make.workload(steps=[]).step(10)
    assert step.step_s == pytest.approx(4 * 0.03)
    assert step.remark is not None
    assert "no whole step was measured" in step.remark


def test_slowdown_is_linear_between_and_constant_beyond():
    workload = make.workload()
    assert [workload.slowdown(n) for n in (1, 2, 4, 8)] == pytest.approx([1, 1.2, 1.6, 1.6])


@pytest.mark.parametrize(
    ("costs", "parts", "best"),
    [([1, 1, 1, 1], 2, [2, 2]), ([1, 2, 3, 9], 2, [3, 1]), ([5, 1, 1], 3, [1, 1, 1])],
)
def test_balance_makes_the_dearest_partition_cheap(costs, parts, best):
    assert list(even_costs(costs, [0] * len(costs), (1,) * parts)) == best


def test_partitions_by_rule():
    workload = make.workload(parameters=(1, 2, 3, 4, 5))
    sizes = {
        rule: [len(p) for p in partitions_of(workload, plan_with(rule))]
        for rule in ("blocks", "4+1", "time")
    }
    assert sizes["blocks"] == [3, 2]
    assert sizes["4+1"] == [4, 1]
    assert sorted(sizes["time"]) == [2, 3]
    with pytest.raises(ConfigError, match=r"balance 4\+4 deals 8 blocks to 2 devices"):
        partitions_of(workload, plan_with("4+4"))
    with pytest.raises(ConfigError, match="has 1 block, too few for 2 devices"):
        partitions_of(make.workload(parameters=(1,)), plan_with("time"))


def partitions_of(workload, plan):
    return strategy_of("gpipe").stage_blocks(workload, plan)


def plan_with(balance):
    return make.plan("gpipe", "1x2", options={"balance": balance})


def test_hops_prefer_the_kind_and_the_better_access():
    table = make.table(
        make.pair([0, 0], bandwidth=1, method="gloo"),
        make.pair([0, 0], bandwidth=2, method="p2pBandwidthLatencyTest", access="staged"),
        make.pair([0, 0], bandwidth=3, method="p2pBandwidthLatencyTest", access="direct"),
        make.pair([0, 0], bandwidth=4, method="given"),
    )
    assert table.hop("p2p", (0, 0), (0, 1))[0].bandwidth_bytes_per_s == 3
    assert table.hop("transport", (0, 1), (0, 0))[0].bandwidth_bytes_per_s == 1


def test_a_node_matrix_serves_every_node_and_a_world_matrix_the_hops_between():
    table = make.table(
        make.pair([0, 0], bandwidth=10), make.pair([0, 1], bandwidth=1, method="given")
    )
    hops, remarks = table.ring("p2p", make.plan("horovod", "2x2"))
    assert [hop.bandwidth_bytes_per_s for hop in hops] == [10, 1, 10, 1]
    assert any("between nodes that were not measured" in remark for remark in remarks)


def test_a_sweep_serves_where_no_matrix_does():
    sweep = make.sweep(0.02, 5e6, 2, operation="p2p", level="network", nodes=2, devices_per_node=1)
    table = make.table(make.pair([0, 0]), sweeps=(sweep,))
    hop, remark = table.hop("p2p", (0, 0), (1, 0))
    assert (hop.latency_s, hop.bandwidth_bytes_per_s) == pytest.approx((0.02, 5e6))
    assert "sweep of gloo" in remark


def test_links_that_are_not_there_are_asked_for():
    with pytest.raises(ConfigError, match="there are no links between nodes; measure them, or"):
        make.table(make.pair([0, 0])).ring("p2p", make.plan("horovod", "2x2"))
    with pytest.raises(ConfigError, match="no all-reduce through gloo was swept between nodes"):
        make.table(make.pair([0, 0], method="gloo")).all_reduce(2, 2, "gloo")


def test_an_all_reduce_is_carried_to_other_ranks_by_the_ring():
    table = make.table(sweeps=(make.sweep(0.006, 1e9, 4), make.sweep(0.002, 2e9, 2)))
    exact = table.all_reduce(1, 4, "gloo")
    assert exact.time_s(1e9) == pytest.approx(1.006)
    assert exact.notes == ()
    carried = table.all_reduce(1, 8, "gloo")
    assert carried.time_s(1e9) == pytest.approx(0.006 * 7 / 3 + (7 / 8) / (3 / 4))
    assert "carried from 4" in carried.notes[0]


def test_files_of_a_site_are_found_and_read_once(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links())
    inputs = Inputs("local", tmp_path)
    cell = make.cell("ddp")
    assert inputs.workload(cell) is inputs.workload(cell.with_(batch_size=64))
    assert inputs.links(cell) is inputs.links(cell)
    assert inputs.links(cell.with_(fabric="slow")) is None


def test_within_a_node_an_emulated_fabric_is_the_site_s_own_network(tmp_path, monkeypatch):
    """A cluster measures it between nodes of one device."""
    make.write_site(tmp_path, make.profile(), make.links(make.pair([0, 0], bandwidth=5e9)))
    slow = make.links(make.pair([0, 1], bandwidth=1e7), sweeps=(make.sweep(1e-3, 1e8, 2),))
    slow["sweeps"][0].update(level="network", nodes=2, devices_per_node=1)
    make.write_site(tmp_path, make.profile(), {**slow, "fabric": "slow"})
    fabrics = {"slow": LinkCondition(0.01, 1e8, 0.0)}
    emulating = dataclasses.replace(load_site("local"), fabrics=fabrics)
    monkeypatch.setattr(inputs_module, "load_site", lambda name: emulating)
    table = Inputs("local", tmp_path).links(make.cell("ddp", "2x2", fabric="slow"))
    between, _ = table.hop("transport", (0, 0), (1, 0))
    within, remark = table.hop("transport", (1, 0), (1, 1))
    assert (between.bandwidth_bytes_per_s, within.bandwidth_bytes_per_s) == (1e7, 5e9)
    assert remark == "links within a node are those of the site's own network"
    assert table.all_reduce(1, 2, None).time_s(1e6) < table.all_reduce(2, 1, None).time_s(1e6)


def test_a_missing_profile_is_one_sentence_with_its_command(tmp_path):
    cell = make.cell("ddp", network="mine.nets:tiny")
    with pytest.raises(InvalidProfile) as error:
        Inputs("local", tmp_path).workload(cell)
    text = str(error.value)
    assert "there is no profile of mine.nets:tiny on mnist at site local" in text
    assert "snakemake" in text
    assert "mine.nets@tiny/fp32-1t/profile.json" in text
    with pytest.raises(InvalidProfile, match="no such profile"):
        open_workload(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("bandwidth_bytes_per_s", -1.0, "is too small; write at least 0"),
        ("bandwidth_bytes_per_s", 0.0, "a bandwidth is above zero"),
        ("bandwidth_bytes_per_s", None, "a hole at row 0, column 1"),
        ("latency_s", -1e-6, "is too small; write at least 0"),
    ],
)
def test_wrong_matrices_are_one_sentence(tmp_path, key, value, says):
    from ddlbench.common.document import write_json

    values = make.links()
    values["pairs"][0][key][0][1] = value
    write_json(tmp_path / "links.json", values)
    with pytest.raises(ConfigError, match=says):
        open_links(tmp_path / "links.json")


def test_links_given_by_hand_make_an_all_reduce_by_the_rings_formula():
    site = dataclasses.replace(
        load_site("local"),
        nodes=4,
        devices_per_node=1,
        interconnect=Interconnect.from_dict(
            {"links": {"default": {"network": {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e9}}}}
        ),
    )
    pairs, sweeps = given_parts(site, "default")
    table = LinkTable(
        dataclasses.replace(Links.from_dict(make.links()), pairs=pairs, sweeps=sweeps)
    )
    # 2 (P-1) latency + 2 (P-1)/P bytes / bandwidth, with P = 4.
    assert table.all_reduce(4, 1, "gloo").time_s(8e6) == pytest.approx(6e-4 + 1.5 * 8e6 / 1e9)
