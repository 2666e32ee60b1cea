"""The test bed is a cluster: what a real one would show, it shows; and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import Options, TestBed, TestBedError, configuration, hosts, missing, network
from testbed.cgroups import Cgroups
from testbed.hooks import TASK_PROLOG, write_hooks
from testbed.layout import CONFIG, CONFIG_FILES, HOME, HOST_LINK, HOSTS, PREFIX, SCRATCH

from ddlbench.experiment.site import load_site

PROGRAM = Path(__file__).with_name("testbed")
OPTIONS = Options(
    nodes=4, devices=4, bandwidth="400mbit", cpu_share=0.25, memory_mb=1000, scratch_mb=20
)

needs_cluster = pytest.mark.skipif(missing(OPTIONS) is not None, reason=str(missing(OPTIONS)))


@pytest.fixture(scope="module")
def shared_bed() -> Iterator[TestBed]:
    """One bed for the tests that leave it as it was."""
    with TestBed(OPTIONS) as shared:
        yield shared


@pytest.fixture
def bed(shared_bed: TestBed) -> TestBed:
    """The shared bed, when the job of the test before has ended."""
    shared_bed.wait_idle()
    return shared_bed


def lines_by_node(text: str) -> dict[str, str]:
    """Output of tasks that print their host name first."""
    return dict(line.split(maxsplit=1) for line in text.splitlines())


# --- without root: the parts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nodes": 0}, "nodes must be"),
        ({"bandwidth": "fast"}, "write for example 100mbit"),
        ({"cpu_share": 0.0}, "cpu share"),
        ({"cpu_period_us": 500}, "cpu period"),
        ({"subnet": "10.1.2.3/24"}, "write for example 10.213"),
        ({"subnet": "8.8.8.0/24"}, "private"),
        ({"subnet": "10.1.2.0/29"}, "private and hold 4 nodes"),
    ],
)
def test_impossible_options_are_refused_in_a_sentence(values: dict, words: str) -> None:
    with pytest.raises(TestBedError, match=words):
        Options(**values)


def test_lines_of_the_hosts_file_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    before = "127.0.0.1 localhost\n\n# a remark\n127.0.0.1 me"  # the last line has no end
    path.write_text(before)
    hosts.add(Options(nodes=2), path)
    hosts.add(Options(nodes=2), path)
    assert path.read_text().count("10.213.77.12 n2\n") == 1
    hosts.remove(path)
    assert path.read_text() == before + "\n"
    path.write_text("192.168.1.2 n2 # mine\n")
    with pytest.raises(TestBedError, match="names n2 already"):
        hosts.add(Options(nodes=2), path)


def test_a_foreign_configuration_is_never_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "CONFIG", tmp_path)
    foreign = tmp_path / "slurm.conf"
    foreign.write_text("ClusterName=production\n")
    with pytest.raises(TestBedError, match="belongs to a SLURM cluster"):
        configuration.check_ours()
    configuration.remove()
    assert foreign.read_text() == "ClusterName=production\n"
    foreign.unlink()
    configuration.write(Options())
    configuration.check_ours()
    configuration.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", ["10.213.0.0/16", "10.213.77.64/26"])
def test_addresses_in_use_are_refused(monkeypatch: pytest.MonkeyPatch, taken: str) -> None:
    def routes(*command: str) -> str:
        assert command[:4] == ("ip", "-json", "route", "show")
        wider = [{"dst": "default"}, {"dst": "10.213.0.0/16"}]
        narrower = [{"dst": "10.213.77.64/26"}]
        known = wider if command[4] == "match" else narrower
        return json.dumps([route for route in known if route["dst"] in ("default", taken)])

    monkeypatch.setattr(network, "system", routes)
    with pytest.raises(TestBedError, match=f"uses {taken} already; choose other addresses"):
        network.check_free(Options())


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_are_found_in_both_versions(tmp_path: Path, version: int) -> None:
    mounts, membership = tmp_path / "mounts", tmp_path / "own"
    if version == 1:
        lines = [f"cgroup {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0"]
        lines += [f"cgroup {tmp_path}/memory cgroup rw,memory 0 0"]
        membership.write_text("2:memory:/outer\n1:cpu,cpuacct:/\n0::/\n")
        (tmp_path / "memory" / "outer").mkdir(parents=True)
        expected = [f"{tmp_path}/cpu/ddlbench-testbed", f"{tmp_path}/memory/outer/ddlbench-testbed"]
    else:
        lines = [f"cgroup2 {tmp_path} cgroup2 rw 0 0"]
        membership.write_text("0::/user.slice\n")
        (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        expected = [f"{tmp_path}/ddlbench-testbed"]
    mounts.write_text("\n".join(lines) + "\n")
    groups = Cgroups.find(mounts, membership)
    assert (groups.version, groups.roots) == (version, expected)
    mounts.write_text("tmpfs /tmp tmpfs rw 0 0\n")
    with pytest.raises(TestBedError, match="leave out --cpu-share"):
        Cgroups.find(mounts, membership)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("step", "quota"),  # (tasks on each node, this node, its devices): quota and period
    [
        (("4(x2)", 1, 4), "1250 5000"),  # a data-parallel rank a device
        (("1(x2)", 1, 4), "1250 5000"),  # one process that drives all of them in turn
        (("2(x2),8", 2, 4), "1250 10000"),  # another count on the last node
        (("2(x2),8", 1, 4), "1250 5000"),
        (("32", 0, 1), "1250 160000"),  # a quota below 1 ms asks for a longer period
        (("2", 0, 0), None),  # no device, no share
    ],
)
def test_a_share_belongs_to_a_device(
    tmp_path: Path, version: int, step: tuple[str, int, int], quota: str | None
) -> None:
    """The script itself, on plain folders in place of control groups."""
    memory = tmp_path if version == 2 else tmp_path / "memory"
    write_hooks(
        Options(cpu_share=0.25, memory_mb=500), Cgroups(version, tmp_path, memory), tmp_path
    )
    environment = {
        "SLURM_STEP_TASKS_PER_NODE": step[0],
        "SLURM_NODEID": str(step[1]),
        "SLURM_GPUS_ON_NODE": str(step[2]),
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "3",
        "SLURM_TASK_PID": "4711",
        "SLURM_MEM_PER_NODE": "100",  # MiB: less than the bed's own limit
    }
    subprocess.run([tmp_path / TASK_PROLOG.name], check=True, env=environment)
    task = tmp_path / "n1" / "job_7" / "0.3"
    assert (task / "cgroup.procs").read_text() == "4711\n"
    if version == 2:
        actual = (task / "cpu.max").read_text().strip() if quota else None
        limit = task.parent / "memory.max"
    else:
        files = [task / "cpu.cfs_quota_us", task / "cpu.cfs_period_us"]
        actual = " ".join(file.read_text().strip() for file in files) if quota else None
        limit = memory / "n1" / "job_7" / "memory.limit_in_bytes"
        assert (memory / "n1" / "job_7" / "0.3" / "cgroup.procs").read_text() == "4711\n"
    if quota is None:
        assert not list(task.glob("cpu.*"))
    assert actual == quota
    assert limit.read_text() == f"{100 * 2**20}\n"


def test_the_batch_script_is_not_limited(tmp_path: Path) -> None:
    write_hooks(OPTIONS, Cgroups(1, tmp_path / "cpu", tmp_path / "memory"), tmp_path)
    environment = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_TASK_PID": "4711"}
    subprocess.run([tmp_path / TASK_PROLOG.name], check=True, env=environment)
    assert not (tmp_path / "cpu").exists()


# --- on the cluster ------------------------------------------------------------------------------


@pytest.mark.cluster
@needs_cluster
def test_every_node_has_its_name_address_and_devices(bed: TestBed) -> None:
    assert bed.node_states() == dict.fromkeys(["n1", "n2", "n3", "n4"], "idle")
    done = bed.srun(
        "--nodes=4",
        "--gres=gpu:3",
        "sh",
        "-c",
        "echo $(hostname) $(ip -4 -o address show eth0 | awk '{print $4}') $CUDA_VISIBLE_DEVICES",
    )
    assert lines_by_node(done.stdout) == {
        node: f"{bed.address(node)}/24 0,1,2" for node in bed.nodes
    }
    for node in bed.nodes:  # names resolve to addresses that the others reach
        assert bed.run("n1", "getent", "hosts", node).stdout.split()[0] == bed.address(node)
    bed.run("n4", "ping", "-c1", "-W5", "n1")


@pytest.mark.cluster
@needs_cluster
def test_scratch_and_shared_memory_are_private_and_scratch_fills_up(bed: TestBed) -> None:
    script = "stat -c '%d' /scratch /dev/shm | tr '\\n' ' '"
    actual = {node: bed.run(node, "sh", "-c", script).stdout.split() for node in bed.nodes}
    assert len({scratch for scratch, _ in actual.values()}) == 4
    assert len({memory for _, memory in actual.values()}) == 4
    bed.run("n1", "sh", "-c", "echo mine > /scratch/note; echo mine > /dev/shm/note")
    seen = bed.run("n2", "ls", "/scratch/note", "/dev/shm/note", check=False)
    assert seen.returncode != 0 and not seen.stdout
    full = bed.srun("--nodelist=n1", "dd", "if=/dev/zero", "of=/scratch/fill", "bs=1M", "count=30",
                    check=False)  # fmt: skip
    assert full.returncode != 0
    assert "No space left on device" in full.stderr
    bed.run("n1", "rm", "/scratch/fill", "/scratch/note", "/dev/shm/note")


@pytest.mark.cluster
@needs_cluster
def test_the_link_has_the_speed_it_was_given(bed: TestBed, tmp_path: Path) -> None:
    """A gloo all-reduce over four nodes moves 2 (n-1)/n of its bytes through every link."""
    pytest.importorskip("torch")
    script = tmp_path / "all_reduce.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, socket, time, torch, torch.distributed as d
            rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
            d.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=size)
            tensor = torch.ones(1_000_000)
            times = []
            for _ in range(6):
                d.barrier()
                begin = time.perf_counter()
                d.all_reduce(tensor)
                times.append(time.perf_counter() - begin)
            assert tensor[0] == 4**6
            if rank == 0:
                print("seconds", sorted(times)[2])
            d.destroy_process_group()
            """
        )
    )
    done = bed.srun(
        *("--nodes=4", "--ntasks=4", sys.executable, str(script)),
        env={
            **os.environ,
            "MEET": f"tcp://{bed.address('n1')}:29500",
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        },
    )
    seconds = float(done.stdout.split("seconds")[1])
    rate = 2 * 3 / 4 * 4e6 * 8 / seconds
    assert 0.6 * 400e6 < rate < 1.15 * 400e6, f"{rate / 1e6:.0f} Mbit/s"


SPIN = """
import json, os, time
begin, used = time.monotonic(), time.process_time()
while time.monotonic() - begin < 2: pass
share = (time.process_time() - used) / (time.monotonic() - begin)
print(json.dumps({"share": share, "groups": open("/proc/self/cgroup").read()}))
"""


@pytest.mark.cluster
@needs_cluster
def test_a_task_has_its_devices_share_of_cpu(bed: TestBed) -> None:
    done = bed.srun("--gres=gpu:1", sys.executable, "-c", SPIN)
    share = json.loads(done.stdout)["share"]
    assert share < 0.28
    assert share > 0.15  # other work on this machine may take from it


@pytest.mark.cluster
@needs_cluster
def test_only_what_srun_starts_is_limited(bed: TestBed, tmp_path: Path) -> None:
    job = bed.sbatch(
        "cat /proc/self/cgroup; echo step; srun cat /proc/self/cgroup", "--gres=gpu:1", cwd=tmp_path
    )
    assert bed.wait(job).state == "COMPLETED"
    batch, step = (tmp_path / f"slurm-{job}.out").read_text().split("step\n")
    assert "ddlbench-testbed" not in batch
    assert f"job_{job}/0.0" in step


@pytest.mark.cluster
@needs_cluster
def test_too_much_memory_is_killed(bed: TestBed) -> None:
    program = "import os; bytearray((1500 if os.environ['SLURM_PROCID'] == '1' else 1) * 10**6)"
    done = bed.srun("--nodes=2", sys.executable, "-c", program, check=False)
    assert done.returncode == 128 + signal.SIGKILL
    assert "task 1: Killed" in done.stderr


@pytest.mark.cluster
@needs_cluster
def test_processes_of_a_job_are_seen_and_none_outlives_it(bed: TestBed, tmp_path: Path) -> None:
    hidden = "setsid sleep 1000 > /dev/null 2>&1 < /dev/null & sleep 1; hostname"
    job = bed.sbatch(f"srun sh -c '{hidden}'; sleep 1000", "--nodes=2", cwd=tmp_path)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        actual = bed.processes(job)
        sleeping = [
            node for node, all_ in actual.items() for process in all_ if "1000" in process.command
        ]
        if sorted(sleeping) == ["n1", "n1", "n2"]:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"processes of the job: {bed.processes(job)}")
    bed.cancel(job)
    assert bed.wait(job).state == "CANCELLED"
    bed.wait_idle()
    assert bed.processes(job) == {node: [] for node in bed.nodes}


@pytest.mark.cluster
@needs_cluster
def test_a_daemon_that_dies_can_come_back_and_its_job_goes_on(bed: TestBed, tmp_path: Path) -> None:
    job = bed.sbatch("srun sh -c 'sleep 4; hostname'", "--nodes=2", cwd=tmp_path)
    while bed.job(job).state != "RUNNING":
        time.sleep(0.1)
    time.sleep(0.5)
    bed.kill_slurmd("n2")
    assert bed.broken() == ["slurmd-n2"]
    bed.start_slurmd("n2")
    assert bed.wait(job).state == "COMPLETED"
    assert sorted((tmp_path / f"slurm-{job}.out").read_text().split()) == ["n1", "n2"]


@pytest.mark.cluster
@needs_cluster
def test_the_site_file_is_one(bed: TestBed, tmp_path: Path) -> None:
    path = tmp_path / "testbed.yaml"
    path.write_text(bed.site_text())
    site = load_site(str(path))
    assert (site.nodes, site.devices_per_node, site.interface) == (4, 4, "eth0")
    assert (site.launcher, site.device, site.scratch) == ("slurm", "cpu", "/scratch")
    assert site.slurm.partition == "gpu"


@pytest.mark.cluster
@needs_cluster
def test_the_command_says_what_is_up_and_refuses_a_second_one(bed: TestBed) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, str(PROGRAM), *words]
        return subprocess.run(line, check=False, capture_output=True, text=True)

    status = command("status")
    assert status.returncode == 0, status.stderr
    assert "n4  10.213.77.14     idle" in status.stdout
    assert command("site").stdout == bed.site_text()
    assert command("run", "n3", "hostname").stdout == "n3\n"
    assert command("run", "n9", "hostname").stderr.startswith("testbed: there is no node n9")
    assert f"process {os.getpid()} is using" in command("up").stderr
    assert f"process {os.getpid()} is using" in command("down").stderr
    with pytest.raises(TestBedError, match="up already"), TestBed():
        pass
    assert bed.healthy


def traces() -> set[str]:
    """What a bed might leave on this machine; without one, what was there anyway."""
    paths = [HOME, SCRATCH, Path("/sys/class/net", HOST_LINK)]
    paths += Path("/run/netns").glob(f"{PREFIX}*")
    paths += [CONFIG / name for name in CONFIG_FILES]
    paths += map(Path, Cgroups.find().roots)
    remains = {str(path) for path in paths if path.exists()}
    remains |= {f"/etc/hosts: {line}" for line in HOSTS.read_text().splitlines()}
    mounts = Path("/proc/mounts").read_text().splitlines()
    remains |= {line for line in mounts if PREFIX in line or str(SCRATCH) in line}
    here = Path("/proc/self/ns/net").readlink()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            elsewhere = (folder / "ns/net").readlink() != here
        except OSError:
            continue
        if command and (elsewhere or command.startswith(("munged", "slurm", "mariadbd"))):
            remains.add(f"{folder.name} {command}")
    return remains


@pytest.fixture
def no_bed(shared_bed: TestBed) -> Iterator[None]:
    """The shared bed taken down; tests that use this come last."""
    shared_bed.down()
    yield
    TestBed().down()


@pytest.mark.cluster
@needs_cluster
@pytest.mark.usefixtures("no_bed")
class TestWithoutTheBed:
    """Beds of their own, after the shared one."""

    def test_nothing_is_left_after_an_error_in_the_block(self) -> None:
        before = traces()
        options = Options(nodes=2, devices=1, cpu_share=0.5, private_tmp=True)
        with pytest.raises(KeyboardInterrupt), TestBed(options) as bed:
            bed.run("n1", "touch", "/tmp/ddlbench-private", cwd=Path("/"))
            assert not Path("/tmp/ddlbench-private").exists()
            bed.sbatch("srun sleep 1000", "--nodes=2", "--gres=gpu:1", "-o/dev/null", cwd=Path("/"))
            raise KeyboardInterrupt
        assert traces() == before

    def test_what_a_killed_owner_left_is_cleaned_away(self) -> None:
        before = traces()
        program = (
            f"import sys, time; sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
            "from testbed import *\n"
            "with TestBed(Options(nodes=2)) as bed: print('up', flush=True); time.sleep(600)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "up\n"
            owner.kill()
        status = subprocess.run(
            [sys.executable, str(PROGRAM), "status"], check=False, capture_output=True, text=True
        )
        assert status.returncode == 1
        assert "removes this bed" in status.stdout
        with TestBed(Options(nodes=1, devices=1)) as bed:
            assert bed.srun("hostname").stdout == "n1\n"
            bed.shape("100mbit")
            assert "rate 100Mbit" in bed.run("n1", "tc", "qdisc", "show", "dev", "eth0").stdout
            bed.shape(None)
            assert "tbf" not in bed.run("n1", "tc", "qdisc", "show", "dev", "eth0").stdout
        assert traces() == before

    def test_up_twice_is_once_and_down_twice_too(self) -> None:
        bed = TestBed(Options(nodes=1, devices=1))
        assert bed.up()
        assert not TestBed(Options(nodes=1, devices=1)).up()
        with pytest.raises(TestBedError, match="up already"):
            TestBed(Options(nodes=2)).up()
        bed.kill_slurmd("n1")
        assert TestBed(Options(nodes=1, devices=1)).up()  # a broken one is made anew
        bed.down()
        bed.down()
        with pytest.raises(TestBedError, match="no test bed is up"):
            TestBed.current()

    def test_accounting_tells_who_cancelled(self, tmp_path: Path) -> None:
        options = Options(nodes=1, accounting=True)
        if reason := missing(options):
            pytest.skip(reason)
        before = traces()
        with TestBed(options) as bed:
            job = bed.sbatch("sleep 100", "--gres=gpu:2", cwd=tmp_path)
            bed.cancel(job)
            bed.wait(job)
            state = ""
            deadline = time.monotonic() + 15
            while "CANCELLED" not in state and time.monotonic() < deadline:
                state = subprocess.run(
                    ["sacct", "-X", "--noheader", "--parsable2", "--format=State", f"-j{job}"],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout.strip()
                time.sleep(0.3)
            assert state == "CANCELLED by 0"
        assert traces() == before
