"""Emulated nodes as they are: real namespaces, a real relay. Skipped where none can be made.

What a busy machine can only make longer or slower is asserted from the side that it cannot move.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.emulation import (
    EmulatedNodes,
    EmulationFailed,
    available,
    namespaces,
)
from ddlbench.emulation import nodes as nodes_module
from ddlbench.emulation.netem import Netem, egress, ingress
from ddlbench.emulation.probe import ping
from ddlbench.experiment.fabric import LinkCondition

pytestmark = pytest.mark.skipif(
    (reason := available("relay")) is not None, reason=f"no emulated nodes here: {reason}"
)
BUDGET_S = 60

RECEIVE = """
import hashlib, json, socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
digest, count = hashlib.sha256(), 0
while data := connection.recv(1 << 16):
    digest.update(data)
    count += len(data)
control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
print(json.dumps([count, digest.hexdigest(), control.split(bytes(1))[0].decode()]))
"""
SEND = """
import random, socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(random.Random(4).randbytes(int(sys.argv[3])))
"""

SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def condition(**changes):
    return LinkCondition(
        **{"latency_s": 0.005, "bandwidth_bits_per_s": 200e6, "loss": 0.0} | changes
    )


@pytest.fixture(scope="module")
def nodes():
    with EmulatedNodes(condition(backend="relay"), 3) as up:
        yield up


def run(nodes, node, *command, **options):
    done = subprocess.run(
        nodes.command(node, command),
        capture_output=True,
        text=True,
        timeout=BUDGET_S,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def python(nodes, node, code, *arguments, **options):
    return run(nodes, node, sys.executable, "-c", code, *arguments, **options)


def transfer(nodes, source, target, count):
    """Send bytes over TCP; what the receiver counted, its digest, its congestion control."""
    receiver = subprocess.Popen(
        nodes.command(target, [sys.executable, "-c", RECEIVE, nodes.address(target)]),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = receiver.stdout.readline().strip()
        python(nodes, source, SEND, f"node{target}", port, str(count))
        return json.loads(receiver.communicate(timeout=BUDGET_S)[0])
    finally:
        receiver.kill()
        receiver.wait()


def echoes(nodes, source, target, count):
    return ping(nodes, source, target, count=count, interval_s=0.005, wait_s=5.0)


def test_each_node_has_a_name_and_an_address(nodes):
    assert nodes.hosts == {
        "node0": "10.213.78.11",
        "node1": "10.213.78.12",
        "node2": "10.213.78.13",
    }
    addresses = (
        "import json, psutil, socket; print(json.dumps([socket.gethostname(), "
        "{name: [a.address for a in found if a.family == socket.AF_INET] "
        "for name, found in psutil.net_if_addrs().items()}]))"
    )
    for node in range(3):
        name, interfaces = json.loads(python(nodes, node, addresses))
        assert name == f"node{node}"
        assert interfaces[nodes.interface] == [nodes.address(node)]
        assert interfaces["lo"] == ["127.0.0.1"]


def test_names_resolve_in_every_node_and_not_here(nodes):
    resolve = "import socket; print([socket.gethostbyname(f'node{i}') for i in range(3)])"
    for node in range(3):
        assert python(nodes, node, resolve) == str(list(nodes.hosts.values()))
    assert "node1" not in Path("/etc/hosts").read_text().split()


def test_folder_environment_and_arguments_are_the_caller_s(nodes, tmp_path):
    folder = tmp_path / "a folder's $name"
    folder.mkdir()
    shown = "import os, sys; print([os.getcwd(), os.environ['GIVEN'], sys.argv[1:]])"
    arguments = ["two words", "$HOME", "'", ""]
    output = python(
        *(nodes, 1, shown, *arguments), cwd=folder, env={**os.environ, "GIVEN": "to the node"}
    )
    assert output == str([str(folder), "to the node", arguments])


def test_a_signal_reaches_the_command(nodes):
    sleeper = subprocess.Popen(
        nodes.command(0, [sys.executable, "-c", SLEEP]), stdout=subprocess.PIPE, text=True
    )
    assert int(sleeper.stdout.readline()) == sleeper.pid
    sleeper.terminate()
    assert sleeper.wait(BUDGET_S) == -signal.SIGTERM


def test_exit_status_is_the_command_s(nodes):
    done = subprocess.run(nodes.command(2, ["sh", "-c", "exit 7"]), check=False)
    assert done.returncode == 7


def test_every_pair_is_at_least_the_delay_apart(nodes):
    # The relay waits a little less than the delay, by what the machine itself adds to it.
    least_s = 0.999 * (0.005 - nodes.describe()["compensation_s"])
    for source, target in ((0, 1), (1, 2), (2, 0)):
        actual = echoes(nodes, source, target, 10)
        assert len(actual) == 10
        assert min(actual) >= 2 * least_s


def test_a_stream_arrives_as_it_was_sent(nodes):
    count = 5_000_000
    wanted = hashlib.sha256(random.Random(4).randbytes(count)).hexdigest()
    assert transfer(nodes, 0, 1, count) == [count, wanted, "cubic"]


def test_no_faster_than_its_rate(nodes):
    nodes.reset_usage()
    start_s = time.monotonic()
    transfer(nodes, 0, 1, 10_000_000)
    assert time.monotonic() - start_s >= 10_000_000 * 8 / 200e6
    used = nodes.usage()
    assert used["backend"] == "relay"
    assert used["cpu_s"] > 0
    assert used["packets"] >= 10_000_000 / 1500
    assert used["lost_on_purpose"] == 0


def test_a_stream_survives_lost_packets():
    with EmulatedNodes(condition(latency_s=0.001, loss=0.05, backend="relay"), 2) as nodes:
        count = 2_000_000
        wanted = hashlib.sha256(random.Random(4).randbytes(count)).hexdigest()
        assert transfer(nodes, 0, 1, count)[:2] == [count, wanted]
        assert nodes.usage()["lost_on_purpose"] > 0


def test_a_route_carries_the_congestion_control():
    with EmulatedNodes(condition(congestion_control="reno", backend="relay"), 2) as nodes:
        assert transfer(nodes, 0, 1, 1000)[2] == "reno"


def test_an_unknown_congestion_control_is_one_sentence():
    unknown = condition(congestion_control="nosuch", backend="relay")
    with pytest.raises(ConfigError, match="congestion_control 'nosuch': this kernel has .*reno"):
        EmulatedNodes(unknown, 2).__enter__()


@pytest.mark.parametrize("count", [0, 1, 241])
def test_a_network_has_at_least_two_nodes(count):
    with pytest.raises(ConfigError, match="write 2 to 240"):
        EmulatedNodes(condition(), count)


def test_a_probe_holds_setting_and_measurement():
    slow = condition(latency_s=0.02, bandwidth_bits_per_s=50e6, loss=0.1, backend="relay")
    with EmulatedNodes(slow, 2) as nodes:
        actual = nodes.probe(["reno"])
    json.dumps(actual, allow_nan=False)
    assert actual["setting"] == {**slow.to_dict(), "nodes": 2}
    assert actual["ok"] == (not actual["misses"])
    measured = actual["measured"]
    assert measured["one_way_delay_s"] >= 0.999 * (0.02 - measured["links"]["compensation_s"])
    assert measured["rate_bits_per_s"] <= 50e6 * 1.5
    assert [flow["congestion_control"] for flow in measured["tcp"]] == ["cubic", "reno"]
    interval = measured["loss"]["wide_interval"]
    assert interval["low"] <= 0.1 <= interval["high"]
    assert measured["usage"]["lost_on_purpose"] > 0


def test_what_the_machine_adds_is_taken_off_anew_each_time():
    """Not twice: a second look would else find no excess, and take nothing off."""
    with EmulatedNodes(condition(latency_s=0.05, backend="relay"), 2) as nodes:
        for _ in range(2):
            nodes.calibrate()
            assert 0 < nodes.describe()["compensation_s"] < 0.05


def test_a_slow_link_has_its_delay_and_the_time_of_its_bits():
    """An echo of 28 bytes takes 0.45 ms over two links of 1 Mbit/s; that is not the delay."""
    slow = condition(latency_s=0.005, bandwidth_bits_per_s=1e6, backend="relay")
    with EmulatedNodes(slow, 2) as nodes:
        compensation_s = nodes.describe()["compensation_s"]
        actual = echoes(nodes, 0, 1, 10)
    bits_s = 2 * 28 * 8 / 1e6
    assert min(actual) >= 2 * 0.999 * (0.005 - compensation_s + bits_s)


INSIDE = LinkCondition(latency_s=0.005, bandwidth_bits_per_s=400e6, loss=0.0)


def names_at(nodes, node, device):
    """What a device is called where it is, and under which addresses it finds others."""
    names = (
        "import socket; print(socket.gethostname(), "
        "[socket.gethostbyname(f'node{i}') for i in (0, 1)])"
    )
    command = nodes.command(node, [sys.executable, "-c", names], device)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_devices_have_links_of_their_own_inside_nodes_of_one_name():
    with EmulatedNodes(condition(inside=INSIDE), 2, 2) as nodes:
        ends = [(node, device) for node in (0, 1) for device in (0, 1)]
        assert [nodes.address(*end)[-2:] for end in ends] == ["11", "12", "13", "14"]
        assert names_at(nodes, 1, 1) == "node1 ['10.213.78.11', '10.213.78.14']"
        assert names_at(nodes, 0, 1) == "node0 ['10.213.78.12', '10.213.78.13']"
        count = 5_000_000
        begun_s = time.monotonic()
        with ThreadPoolExecutor() as pool:  # both devices of node 0 to those of node 1, at once
            sent = [
                pool.submit(stream, nodes, (0, device), (1, device), count) for device in (0, 1)
            ]
            assert [each.result() for each in sent] == [count, count]
        assert time.monotonic() - begun_s >= 2 * count * 8 / 200e6
        begun_s = time.monotonic()
        assert stream(nodes, (1, 0), (1, 1), count) == count
        assert time.monotonic() - begun_s >= count * 8 / 400e6


def test_one_node_may_have_links_inside_it_and_they_are_probed():
    only = LinkCondition(0.0, None, 0.0, inside=INSIDE)
    with EmulatedNodes(only, 1, 3) as nodes:
        actual = nodes.probe()
    json.dumps(actual, allow_nan=False)
    assert actual["setting"] == {**only.to_dict(), "nodes": 1, "devices_per_node": 3}
    measured = actual["measured"]
    assert (measured["pairs"], measured["loss"]) == ([], None)
    (pair,) = measured["inside"]["pairs"]
    assert (pair["node"], pair["from"], pair["to"]) == (0, 0, 2)
    assert pair["one_way_delay_s"] >= 0.999 * (
        0.005 - measured["links"]["inside"]["compensation_s"]
    )
    assert pair["rate_bits_per_s"] <= 400e6 * 1.5


def stream(nodes, source, target, count):
    """Send bytes from one device, as (node, device), to another; what arrived."""
    address = nodes.address(*target)
    receiver = subprocess.Popen(
        nodes.command(target[0], [sys.executable, "-c", RECEIVE, address], target[1]),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = receiver.stdout.readline().strip()
        send = [sys.executable, "-c", SEND, address, port, str(count)]
        subprocess.run(nodes.command(source[0], send, source[1]), check=True, timeout=BUDGET_S)
        return json.loads(receiver.communicate(timeout=BUDGET_S)[0])[0]
    finally:
        receiver.kill()
        receiver.wait()


def test_a_relay_that_ends_is_told():
    with EmulatedNodes(condition(backend="relay"), 2) as nodes:
        nodes._backend._process.kill()
        with pytest.raises(EmulationFailed, match="relay of the emulated links has ended"):
            nodes.usage()


OWNER = """
import os, signal, sys
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.emulation import EmulatedNodes
with EmulatedNodes(LinkCondition(0.001, None, 0.0, backend="relay"), 2) as nodes:
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_an_owner_that_was_killed():
    marker = f"owner-{os.getpid()}"
    done = subprocess.run(
        [sys.executable, "-c", OWNER],
        capture_output=True,
        text=True,
        timeout=BUDGET_S,
        env={**os.environ, "DDLBENCH_TEST_MARKER": marker},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    end_s = time.monotonic() + BUDGET_S
    while left := _with_marker(marker):
        assert time.monotonic() < end_s, f"still there: {left}"
        time.sleep(0.05)


def _with_marker(marker):
    process_ids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                process_ids.append(entry.name)
        except OSError:
            continue
    return process_ids


def test_the_same_inside_a_user_namespace(monkeypatch):
    """What a user without root gets: all namespaces belong to one that is the user's own."""
    plain = namespaces.run_tool

    def without_root(command, text=""):
        if command[1:] == ["--net", "true"]:
            raise EmulationFailed("unshare failed: Operation not permitted")
        return plain(command, text)

    monkeypatch.setattr(namespaces, "run_tool", without_root)
    if (missing := available("relay")) is not None:
        pytest.skip(missing)
    with EmulatedNodes(condition(backend="relay"), 2) as nodes:
        assert run(nodes, 1, "hostname") == "node1"
        users = "import os; print(os.readlink('/proc/self/ns/user'))"
        assert python(nodes, 0, users) == python(nodes, 1, users)
        assert python(nodes, 0, users) != str(Path("/proc/self/ns/user").readlink())
        assert transfer(nodes, 0, 1, 100_000)[0] == 100_000


def test_a_bridge_joins_the_nodes_of_netem(monkeypatch):
    """All of the other backend but netem itself, which few kernels of test machines have."""
    monkeypatch.setattr(nodes_module, "_choice", lambda *_: ("netem", None))
    monkeypatch.setattr(Netem, "_netem", lambda *_: None)
    with EmulatedNodes(condition(), 3) as nodes:
        assert len(echoes(nodes, 0, 2, 5)) == 5
        assert transfer(nodes, 1, 2, 1_000_000)[::2] == [1_000_000, "cubic"]
        assert nodes.usage()["dropped_by_queue"] == 0
        assert nodes.describe()["ingress"] == "delay 5000us rate 200000000bit limit 1084"


@pytest.mark.skipif(
    (no_netem := available("netem")) is not None, reason=f"no netem here: {no_netem}"
)
def test_netem_makes_such_links_too():
    slow = condition(latency_s=0.02, bandwidth_bits_per_s=50e6, loss=0.1, backend="netem")
    with EmulatedNodes(slow, 2) as nodes:
        measured = nodes.probe()["measured"]
    assert measured["one_way_delay_s"] >= 0.999 * 0.02
    assert measured["rate_bits_per_s"] <= 50e6 * 1.5
    interval = measured["loss"]["wide_interval"]
    assert interval["low"] <= 0.1 <= interval["high"]


@pytest.mark.parametrize("options", [egress, ingress])
def test_tc_understands_what_it_is_asked_for(options):
    lossy = condition(loss=0.013)
    with namespaces.Space() as space:
        command = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", *options(lossy)]
        done = subprocess.run(
            [*space.enter(), "unshare", "--net", *command],
            capture_output=True,
            text=True,
            timeout=BUDGET_S,
            check=False,
        )
    # It reads all options before the kernel is asked whether it has such a queue.
    assert done.returncode == 0 or "kind is unknown" in done.stderr, done.stderr
