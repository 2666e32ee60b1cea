"""Kinds of node in sinfo's rows, as clusters print them."""

from __future__ import annotations

import os

import pytest

from ddlbench.slurm.partitions import is_slice, node_kinds, parse_gres, parse_kinds, why_unusable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(null)", {}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:8", {"a100": 8}),
        ("gpu:titanrtx:4(S:0-1)", {"titanrtx": 4}),
        ("gpu:a100:4(S:0,1),nvme:1", {"a100": 4}),
        ("nvme:2,gpu:v100:2,gpu:v100:2", {"v100": 4}),
        ("gpu:v100:2,gpu:t4:1,shard:t4:8", {"v100": 2, "t4": 1}),
        ("gpu", {"": 1}),
        ("gpu:h100", {"h100": 1}),
        ("gpu:4090:8(S:0-1)", {"4090": 8}),
        ("gpu:h100:no_consume:4", {"h100": 4}),
        ("gpu:NO_CONSUME:4,gpu:1k", {"": 1028}),
        ("gpu:0,craynetwork:4", {}),
    ],
)
def test_gres(text, expected):
    assert parse_gres(text) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("a100_1g.5gb", "nvidia_h100_80gb_hbm3_1g.10gb", "1g.10gb", "a100_3g.20gb+me", "2g10gb"),
        *("a100_1g", "a100-mig", "A100MIG", "mig-1g", "H100_4G.40GB", "a30_2g_12gb", "gpu_mig7"),
    ],
)
def test_names_of_slices(name):
    assert is_slice(name)


@pytest.mark.parametrize(
    "name",
    [
        *("a100", "a100_80g", "v100-32g", "v100_16gb", "h100_80gb_hbm3", "4090", "p100_12g"),
        *("a100-sxm4-40gb", "rtx_6000", "gh200", "migraine", "a100_64gb", ""),
    ],
)
def test_names_of_whole_gpus(name):
    assert not is_slice(name)


@pytest.mark.parametrize(
    "state",
    [
        *("idle", "allocated", "alloc", "mix", "mixed-", "idle~", "idle#", "completing", "planned"),
        *("powered_down", "reboot^", "idle+planned", "a-state-of-tomorrow", ""),
    ],
)
def test_states_of_usable_nodes(state):
    assert why_unusable(state) is None


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("down*", "down"),
        ("drained", "drained"),
        ("draining@", "draining"),
        ("drng", "draining"),
        ("idle*", "not responding"),
        ("idle$", "in maintenance"),
        ("maint", "in maintenance"),
        ("resv", "reserved"),
        ("mixed+drain", "drained"),
        ("FAIL", "broken"),
        ("inval", "misconfigured"),
    ],
)
def test_states_of_unusable_nodes(state, why):
    assert why_unusable(state) == why


ROWS = """\
gpu|3|64|256000|gpu:a100:4(S:0-1)|1-00:00:00|up|ib,a100|mixed
gpu|2|64|256000|gpu:a100:4|1-00:00:00|up|a100,ib|drained
gpu|1|48+|256000|gpu:a100:4|1-00:00:00|up|a100,ib|idle
gpu|4|64|512000|gpu:a100:4|1-00:00:00|up|a100,ib|idle
cpu*|9|64|1|(null)|infinite|up|(null)|idle
gone|0|0|0|(null)|infinite|up|(null)|n/a
slurm_load_node: a warning
"""


def test_equal_nodes_are_added_and_unusable_ones_counted_apart():
    small, large, cpu, gone = parse_kinds(ROWS, None)
    assert (small.usable, small.unusable, small.nodes) == (4, (("drained", 2),), 6)
    assert (small.cpus_per_node, small.gpus) == (48, (("a100", 4),))
    assert (large.usable, large.memory_mb) == (4, 512000)
    assert (cpu.partition, cpu.is_default, cpu.memory_mb) == ("cpu", True, None)
    assert (cpu.time_limit_s, small.time_limit_s, small.is_default) == (None, 86400, False)
    assert gone.nodes == 0


def test_rows_without_a_state_count_as_usable():
    rows = "".join(
        row.rpartition("|")[0] + "\n" for row in ROWS.splitlines() if row.count("|") == 8
    )
    assert [kind.usable for kind in parse_kinds(rows, "gpu")] == [6, 4, 9, 0]
    assert parse_kinds(rows, "gpu")[0].features == ("ib", "a100")
    assert parse_kinds(rows, "gpu")[0].is_default


def test_sinfo_is_asked_for_states_and_exact_rows(tmp_path, monkeypatch):
    program = tmp_path / "sinfo"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/words\n'
        'case "$*" in *%P*) echo "gpu*";; *) echo "gpu|3|64|1|gpu:2|infinite|up|ib|down";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (kind,) = node_kinds()
    assert kind.is_default
    assert (kind.usable, kind.unusable) == (0, (("down", 3),))
    assert "--exact" in (tmp_path / "words").read_text()


def test_racks_are_no_kinds_of_node() -> None:
    rows = "\n".join(
        f"gpu|8|64|515000|gpu:a100:4|1-00:00:00|up|a100,ib,{place}|idle"
        for place in ("rack1", "rack2", "row-b", "switch_07", "island3")
    )
    (kind,) = parse_kinds(rows, "gpu")
    assert (kind.usable, kind.features) == (40, ("a100", "ib"))
    assert {"ib", "rack2"} <= set(kind.all_features)
