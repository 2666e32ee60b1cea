"""Expected times of collectives: hand-checked values, published points held out, verdicts."""

from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pandas as pd
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.collective_points import (
    PUBLISHED,
    calibrated,
    corrected,
    fit_points,
    read_points,
    refitted,
    score,
)
from ddlbench.predict.collective_times import (
    LONG,
    MESH_RINGS,
    Groups,
    Library,
    seconds,
    size_class,
)
from ddlbench.predict.hardware import DeviceSheet, Fabric, System
from ddlbench.predict.link_verdicts import Measured, judged_pairs, judged_sweep, overall, sentence
from ddlbench.predict.run_tables import ScoreQuestion

GIB = 2**30


@pytest.fixture(scope="module")
def library():
    return Library.load("nccl")


@pytest.fixture(scope="module")
def published():
    return pd.read_csv(PUBLISHED)


def system(nodes=1, device="h100-sxm", fabric="efa-3200", devices=8):
    return System(
        DeviceSheet.load(device), Fabric.load(fabric) if nodes > 1 else None, nodes, devices
    )


def plain(library, **values):
    """A library whose rates are the links' and which has no latency, but for ``values``."""
    whole = dict.fromkeys(("ring_share", "switch_share", "tree_share", "network_share"), 1.0)
    none = dict.fromkeys(("start_s", "device_s", "node_s"), 1e-15)
    short = {"short_latency_share": 1.0, "short_rate_share": 1.0}
    return library.with_constants(whole | none | short | values)


def test_bytes_of_a_ring_by_hand(library):
    groups = Groups.of_system(system(device="a100-sxm-80gb"))  # 300 GB/s, no sum in the switch
    payload = np.array([300e9])
    plain_library = plain(library)
    assert seconds(groups, payload, plain_library) == pytest.approx(2 * 7 / 8)
    assert seconds(groups, payload, plain_library, "all_gather") == pytest.approx(7 / 8)
    assert seconds(groups, payload, plain_library, "broadcast") == pytest.approx(1)


def test_latency_grows_with_nodes_and_a_gather_has_half(library):
    payload = np.array([1.0])
    times = [
        float(seconds(Groups.of_system(system(n)), payload, plain(library))[0]) for n in (2, 4, 8)
    ]
    latency_s = Fabric.load("efa-3200").latency_s
    assert times == pytest.approx([n * latency_s for n in (2, 4, 8)], rel=1e-3)
    half = seconds(Groups.of_system(system(4)), payload, plain(library), "reduce_scatter")
    assert half == pytest.approx(2 * latency_s, rel=1e-3)


def test_switches_sum_only_over_whole_nodes_of_devices_that_can(library):
    doubled = plain(library, switch_share=2.0)
    payload = np.array([450e9])
    times = {
        n: float(seconds(Groups.of_system(system(devices=n)), payload, doubled)[0]) for n in (4, 8)
    }
    assert times[4] == pytest.approx(2 * 3 / 4)
    assert times[8] == pytest.approx(2 * 7 / 8 / 2)


def test_two_nodes_send_each_byte_once_by_a_tree(library):
    slow = system(2, fabric="efa-400")  # 50 GB/s a node, far below NVLink
    tree_s = float(seconds(Groups.of_system(slow), np.array([50e9]), plain(library))[0])
    assert tree_s == pytest.approx(1, rel=1e-3)


def test_rings_of_the_cube_mesh_are_those_of_its_links():
    """Most rings over the first n V100s of a DGX-1, each link used once in each direction."""
    links = {
        (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
        (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    }  # fmt: skip
    free = {**links, **{(b, a): count for (a, b), count in links.items()}}
    assert all(sum(n for (a, _), n in free.items() if a == device) == 6 for device in range(8))
    for count in (3, 4, 6, 7, 8):
        orders = ([*pairwise((0, *order, 0))] for order in permutations(range(1, count)))
        rings = [hops for hops in orders if all(hop in free for hop in hops)]
        assert most_rings(rings, dict(free), 0, 6) == MESH_RINGS[count], count


def most_rings(rings, free, first, enough):
    most = 0
    for at in range(first, len(rings)):
        if most >= enough:
            break
        if all(free[hop] for hop in rings[at]):
            for hop in rings[at]:
                free[hop] -= 1
            most = max(most, 1 + most_rings(rings, free, at, enough - 1))
            for hop in rings[at]:
                free[hop] += 1
    return most


def test_a_fit_recovers_planted_constants(library, published):
    planted = library.with_constants({"ring_share": 0.7, "node_s": 3e-4, "switch_share": 0.9})
    points = read_points(published)
    made = read_points(published.assign(time_s=points.expected_s(planted)))
    fitted = refitted(made, library)
    for name in ("ring_share", "node_s", "switch_share", "tree_share"):
        assert fitted.constant(name) == pytest.approx(planted.constant(name), rel=0.05), name


def test_shipped_constants_are_those_of_the_shipped_points(library, published):
    fitted, _ = calibrated(read_points(published), library, "nccl_all_reduce.csv")
    for name, constant in library.constants.items():
        assert fitted.constant(name) == pytest.approx(constant.value, rel=0.01), name
    for name, interval in library.intervals.items():
        assert fitted.intervals[name].low == pytest.approx(interval.low, rel=0.01)
        assert fitted.intervals[name].high == pytest.approx(interval.high, rel=0.01)


def test_sweeps_held_out_are_predicted_from_names(published):
    actual = score(published, ScoreQuestion("model"))
    assert actual["rows"] == 255 and actual["all_rows"] == 285
    assert actual["mean_absolute_error"] < 0.225  # 0.193
    assert actual["by"]["message"][LONG]["mean_absolute_error"] < 0.17
    assert 0.85 <= actual["coverage"] <= 0.95
    known = actual["by"]["known"]["16 MB and 1 GB of the sweep"]
    assert known["median_absolute_error"] < 0.06


@pytest.fixture(scope="module")
def shares():
    """All-reduces of 4 to 128 nodes of eight H100 on one fabric, as a table."""
    return pd.read_csv(PUBLISHED.with_name("simai_all_reduce.csv"))


@pytest.mark.slow
def test_number_of_nodes_held_out_on_one_fabric(shares, library):
    """Sweeps of other numbers of nodes correct what names tell: 13.4 % without them.

    No fabric is named, as the latency of its file comes from these points.
    """
    actual = score(shares, ScoreQuestion("gpus"))
    assert actual["rows"] == len(shares) == 66
    assert actual["mean_absolute_error"] <= 0.1  # 0.087
    assert 0.85 <= actual["coverage"] <= 0.95


def test_own_sweeps_tell_the_latency_of_a_fabric(shares, library):
    """Whatever its name says: 75 us a node by NCCL's own constants."""
    slow = replace(Fabric.load("infiniband-400"), latency_s=400e-6)
    points = read_points(shares, fabric=slow)
    fitted, _ = calibrated(points, library, "shares.csv")
    assert fitted.tells_latency and fitted.most_nodes == 128
    assert fitted.with_latency(slow).latency_s == pytest.approx(75e-6, rel=0.1)
    assert library.with_latency(slow) == slow
    assert "shares.csv" in fitted.intervals[LONG].source


def test_gathers_tell_as_sums_do(shares, library):
    """What FSDP sends: a ring passes once, so that the latency is half that of a sum."""
    gathers = [shares.assign(collective=name) for name in ("all-gather", "reduce_scatter")]
    points = read_points(pd.concat(gathers, ignore_index=True))
    planted = replace(library.with_constants({"node_s": 6e-4}), of_one_cluster=True)
    made = replace(points, rows=points.rows.assign(time_s=points.expected_s(planted)))
    fitted, _ = corrected(made, library)
    assert fitted.constant("node_s") == pytest.approx(6e-4, rel=0.1)
    sums = read_points(shares)
    assert (points.expected_s(planted)[: len(sums)] < sums.expected_s(planted)).all()


def test_a_sweep_of_one_node_leaves_the_latency_of_the_fabric(published, library):
    points = read_points(
        published[(published["accelerator"] == "B200") & (published["nodes"] == 1)]
    )
    fitted, constants = calibrated(points, library, "one.csv")
    assert not fitted.tells_latency
    assert "node_s" in constants.unknown and "ring_share" in constants.unknown  # the switch sums
    assert fitted.intervals == library.intervals  # one sweep does not tell how much sweeps differ


def test_points_count_once(published, library):
    few = published[published["accelerator"] == "H200"]
    points, twice = (read_points(table) for table in (few, pd.concat([few, few])))
    assert len(twice) == len(points) == len(few)
    assert calibrated(twice, library, "own.csv")[0] == calibrated(points, library, "own.csv")[0]
    assert len(read_points(published)) == len(published)


def test_a_library_names_the_cluster_of_its_points(published, library):
    points = read_points(published)
    of_one = points.take(points.clusters == points.clusters[-1])
    fitted, _ = calibrated(of_one, library, "own.csv", "infiniband-400")
    names = set(of_one.rows["device"])
    assert fitted.device in names | set(of_one.rows["chip"])
    assert fitted.fabric == ("infiniband-400" if of_one.groups.nodes.max() > 1 else "")
    again, _ = calibrated(points, fitted, "all.csv", "infiniband-400")
    assert (again.device, again.fabric) == ("", "")


def test_two_own_points_tell_latency_and_rate(library, published):
    table = published[published["accelerator"] == "H200"]
    points = read_points(table)
    planted = library.with_constants(
        {name: library.constant(name) * 1.5 for name in ("start_s", "device_s", "node_s")}
    )
    made = read_points(table.assign(time_s=points.expected_s(planted)))
    two = made.take(np.isin(made.payload_bytes, (2**24, GIB)))
    there, constants = corrected(two, library)
    np.testing.assert_allclose(
        there.values()["switch_share"], planted.values()["switch_share"], 0.02
    )
    errors = {name: np.abs(made.expected_s(of) / made.measured_s - 1).mean()
              for name, of in (("before", library), ("corrected", there))}  # fmt: skip
    assert errors["corrected"] < errors["before"] / 3
    low, high = constants.intervals["start_s"]
    assert low < planted.constant("start_s") < high


def test_one_sweep_of_a_subset_can_be_scored(published):
    few = published[(published["accelerator"] == "B200") & (published["nodes"] == 4)]
    actual = score(few.head(9), ScoreQuestion("model", {"min_bytes": "262144"}))
    assert actual["rows"] == 4 and actual["by"]["sweep"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"collective": "all-to-all"}, "no time is expected of"),
        ({"time_s": -1}, "time_s is -1"),
        ({"ranks": 1}, "ranks is 1; write a whole number of 2 or more"),
        ({"nodes": 1.5}, "nodes is 1.5; write a whole number"),
        ({"nodes": 16, "nic_gb_per_s_a_node": 50}, "ranks is 8; write a multiple of nodes"),
        ({"accelerator": "X", "nvlink_gb_per_s_one_way": None}, "in no data sheet"),
        ({"nodes": 2, "nic_gb_per_s_a_node": None}, "nodes need a network"),
    ],
)
def test_wrong_rows_are_named(published, change, words):
    with pytest.raises(ConfigError, match=words):
        read_points(published.head(2).assign(**change))


def test_unknown_kinds_are_named(published):
    with pytest.raises(ConfigError, match="'speed' is unknown"):
        score(published, ScoreQuestion("none", {"speed": "1"}))


def sweep(nodes, library, factor, sizes=(2**15, 2**22, 2**28, GIB)):
    there = system(nodes)
    groups = Groups.of_system(there, len(sizes))
    times = factor * seconds(groups, np.array(sizes, dtype=float), library)
    return Measured("all_reduce", nodes, 8, sizes, times), there


def test_verdicts_follow_the_interval(library):
    for factor, verdict in ((1.0, "normal"), (1.6, "slow"), (0.7, "fast")):
        measured, there = sweep(2, library, factor)
        judged = judged_sweep(measured, there, library)
        assert overall(judged)[0] == verdict
        assert judged[0].verdict == "cannot tell"  # intervals of short messages say nothing
        assert sentence(judged, there, "efa-3200").casefold().startswith(verdict)


def test_far_beyond_the_fit_nothing_is_judged(library):
    measured, there = sweep(64, library, 3.0)
    judged = judged_sweep(measured, there, library)
    assert {judgement.verdict for judgement in judged} == {"cannot tell"}
    assert "64 are over twice" in sentence(judged, there, library)


def test_copies_are_compared_with_the_data_sheet(library):
    rates = [("median", 390e9), ("slowest", 200e9), ("wrong", 500e9)]
    judged = judged_pairs(rates, system(), library)
    assert [judgement.verdict for judgement in judged] == ["normal", "slow", "fast"]
    assert "The data sheet has 450 GB/s one way: look at the unit" in sentence(
        judged[2:], system(), library
    )
    assert "data sheet" not in sentence(judged[:1], system(), library)
    mesh = judged_pairs(rates, system(device="v100-sxm-32gb"), library)
    assert {judgement.verdict for judgement in mesh} == {"cannot tell"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"1 to 64 MB": None}, "'1 to 64 MB' is missing; add low, high and source"),
        ({"1 to 64 KB": 1.0}, "'1 to 64 KB' is unknown; write 'below 1 MB'"),
        ({"1 to 64 MB": 9.0}, "low of '1 to 64 MB' is 9; write at most its high"),
    ],
)
def test_wrong_intervals_of_a_library_are_named(library, tmp_path, changes, words):
    shipped = library.intervals
    changed = {
        name: replace(shipped.get(name, shipped[LONG]), low=low)
        for name, low in changes.items()
        if low
    }
    kept = {name: each for name, each in shipped.items() if name not in changes}
    file = tmp_path / "ours.yaml"
    replace(library, intervals=kept | changed).write(file)
    with pytest.raises(ConfigError, match=words):
        Library.load(str(file))


def test_classes_of_sizes():
    assert [size_class(size) for size in (1, 2**20, 2**26)] == [
        "below 1 MB", "1 to 64 MB", "64 MB and more",
    ]  # fmt: skip


@pytest.mark.parametrize("hold_out", ["model", "device"])
def test_another_name_of_a_device_does_not_teach_what_is_held_out(hold_out):
    published = pd.read_csv(PUBLISHED)
    rows = published[published["accelerator"] == "H100"].reset_index(drop=True)
    renamed = rows.assign(accelerator="NVIDIA H100 80GB HBM3")
    errors = [
        score(table, ScoreQuestion(hold_out))["mean_absolute_error"] for table in (rows, renamed)
    ]
    assert errors[1] == pytest.approx(errors[0])


def test_a_sweep_under_two_names_of_its_device_counts_once(shares, library):
    """Two numbers of nodes do not tell how much sweeps differ, under whichever names."""
    two = shares[shares["nodes"] <= 8]
    renamed = two.assign(accelerator="NVIDIA H100 80GB HBM3", time_s=two["time_s"] * 1.01)
    points = read_points(pd.concat([two, renamed], ignore_index=True))
    assert set(two["accelerator"]) == {"H100"} and len(set(points.clusters)) == 1
    fitted, _ = calibrated(points, library, "two.csv")
    assert fitted.intervals == library.intervals


def test_two_clusters_of_one_number_of_nodes_keep_the_intervals(shares, library):
    alike = shares[shares["nodes"] == 4]
    table = pd.concat([alike.assign(source=name) for name in ("here", "there")])
    fitted, _ = calibrated(read_points(table), library, "two.csv")
    assert not fitted.of_one_cluster and fitted.intervals == library.intervals
    corrected_once, _ = calibrated(read_points(alike), library, "alike.csv")
    again, _ = calibrated(read_points(table), corrected_once, "two.csv")
    assert corrected_once.of_one_cluster and not again.of_one_cluster


def test_few_times_of_a_size_leave_its_interval(shares, library):
    """Three times would claim an interval of 90 % that the fourth leaves half the time."""
    sweeps = shares[shares["nodes"] <= 16]
    fitted, _ = calibrated(read_points(sweeps), library, "shares.csv")
    changed = {name for name, each in fitted.intervals.items() if each != library.intervals[name]}
    assert changed == {LONG}  # 27 times; 6 are shorter


def test_copies_of_points_do_not_narrow_the_intervals_of_constants(library):
    published = pd.read_csv(PUBLISHED)
    many = pd.concat([published] * 10, ignore_index=True)
    once, copied = (
        fit_points(read_points(table), library).relative_errors for table in (published, many)
    )
    for name in ("ring_share", "switch_share", "network_share", "node_s"):
        assert copied[name] > 0.9 * once[name], name
