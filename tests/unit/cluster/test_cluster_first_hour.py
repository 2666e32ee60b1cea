"""`ddlbench init` and `ddlbench doctor`, on the words of clusters that are not here."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ddlbench import cli
from ddlbench.cluster import doctor, init
from ddlbench.cluster.doctor import judge_nodes
from ddlbench.cluster.init import Answers, site_text, write_site
from ddlbench.cluster.preflight import judge_partition
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import load_site
from ddlbench.planning.resources import job_minutes
from ddlbench.slurm.partitions import parse_gres, parse_partitions

SINFO = """\
cpu|20|64|256000|(null)|2-00:00:00|up|(null)
gpu|4|24|190000|gpu:titanrtx:4(S:0-1)|5-00:00:00|up|ib,turing
short|2|24|190000+|gpu:4|1:00:00|up|ib
old|1|8|32000|gpu:k80:2|infinite|down|(null)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder of our own, so that no site file is written into the real one."""
    real = project_root()
    (tmp_path / "Snakefile").write_text("")
    shutil.copytree(real / "config" / "schemas", tmp_path / "config" / "schemas")
    (tmp_path / "config" / "sites").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(null)", ("", "", 0)),
        ("gpu:4", ("gpu", "", 4)),
        ("gpu:a100:8", ("gpu", "a100", 8)),
        ("gpu:titanrtx:4(S:0-1)", ("gpu", "titanrtx", 4)),
        ("gpu:a100:4(S:0,1),nvme:1", ("gpu", "a100", 4)),
        ("nvme:2,gpu:v100:2,gpu:v100:2", ("gpu", "v100", 4)),
        ("gpu", ("gpu", "", 1)),
    ],
)
def test_gres(text, found):
    assert parse_gres(text) == found


def test_partitions_with_the_default_first():
    found = parse_partitions(SINFO, default="gpu")
    assert [p.name for p in found] == ["gpu", "short", "old", "cpu"]
    assert found[0].time_limit_s == 5 * 24 * 3600
    assert found[1].memory_mb == 190_000
    assert found[1].time_limit_s == 3600
    assert found[2].time_limit_s is None
    assert not found[2].is_up
    assert [p.features for p in found] == ["ib,turing", "ib", "", ""]


def answers(name="alpha", which="gpu", **changes):
    partition = next(p for p in parse_partitions(SINFO, "gpu") if p.name == which)
    values = {
        "name": name,
        "partition": partition,
        "account": "proj42",
        "scratch": "/scratch/$USER",
        "interface": "ib0",
        "device": "cuda" if partition.gpus_per_node else "cpu",
        "devices_per_node": partition.gpus_per_node or 64,
        "max_nodes": partition.nodes,
    }
    return Answers(**{**values, **changes})


@pytest.mark.parametrize("which", ["gpu", "short", "cpu", "old"])
def test_what_init_writes_is_a_valid_site(which, project):
    written = answers(which=which)
    write_site(written)
    site = load_site("alpha")
    assert site.slurm["partition"] == which
    assert site.nodes == written.partition.nodes
    assert site.devices_per_node * site.cpus_per_device <= written.partition.cpus_per_node
    limit_s = written.partition.time_limit_s
    assert limit_s is None or job_minutes(site) * 60 <= limit_s
    assert all(f.ok for f in judge_partition(site, parse_partitions(SINFO, "gpu"))[1:])
    assert (site.slurm["gres"] == "") == (which == "cpu")


def test_keys_that_stand_there_as_comments_are_valid_without_the_mark(project):
    path = write_site(answers())
    lines = path.read_text().splitlines()
    marked = [line for line in lines if re.match(r" *# [a-z_0-9]+: ", line)]
    found = {line.split(":")[0].strip(" #") for line in marked}
    assert found == {"setup", "container", "interconnect", "qos", "constraint", "extra", "srun"}
    path.write_text(
        "\n".join(line.replace("# ", "", 1) if line in marked else line for line in lines)
    )
    site = load_site("alpha")
    assert site.setup
    assert site.container["image"].startswith("/")
    assert site.interconnect["p2p_binary"]
    assert site.slurm["srun"] == ["--cpu-bind=cores"]
    assert all(site.slurm[key] for key in ("qos", "constraint", "extra", "partition"))
    assert "ib,turing" in next(line for line in marked if "constraint" in line)


def test_init_does_not_overwrite(project):
    write_site(answers())
    with pytest.raises(ConfigError, match="is there already"):
        write_site(answers())
    write_site(answers(account=None), overwrite=True)
    assert "account: null" in (project / "config" / "sites" / "alpha.yaml").read_text()


def test_init_asks_for_what_slurm_cannot_know(project, monkeypatch):
    monkeypatch.setattr(init, "partitions", lambda: parse_partitions(SINFO, "gpu"))
    monkeypatch.setattr(init, "accounts", lambda: ["proj1", "proj2"])
    asked = CliRunner().invoke(
        cli.commands, ["init", "beta"], input="short\nproj2\n/local\nib1\n", catch_exceptions=False
    )
    assert asked.exit_code == 0, asked.output
    site = load_site("beta")
    assert (site.slurm["partition"], site.slurm["account"]) == ("short", "proj2")
    assert (site.scratch, site.interface) == ("/local", "ib1")
    silent = CliRunner().invoke(cli.commands, ["init", "gamma", "--yes"], catch_exceptions=False)
    assert silent.exit_code == 0
    assert load_site("gamma").slurm["partition"] == "gpu"


def test_without_slurm_init_says_so(project, monkeypatch):
    monkeypatch.setenv("PATH", str(project))
    with pytest.raises(ConfigError, match=r"^no SLURM answers here.*slurm-example.yaml"):
        CliRunner().invoke(cli.commands, ["init", "x", "--yes"], catch_exceptions=False)


def site_of(project, **changes):
    text = site_text(answers())
    for old, new in changes.items():
        text = text.replace(old, new)
    (project / "config" / "sites" / "alpha.yaml").write_text(text)
    return load_site("alpha")


def test_doctor_agrees_with_what_init_wrote(project):
    assert all(f.ok for f in judge_partition(site_of(project), parse_partitions(SINFO, "gpu")))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("partition: gpu", "partition: gpuu", "there is no partition 'gpuu'"),
        ("partition: gpu", "partition: old", "old is down"),
        ("nodes: 4 ", "nodes: 9 ", "write nodes: 4"),
        ("devices_per_node: 4", "devices_per_node: 8", "write devices_per_node: 4"),
        ("cell_timeout_s: 3600", "cell_timeout_s: 999999", "write cell_timeout_s: 429900"),
        ("partition: gpu", "partition: short", "cell_timeout_s: 2220 and stage_timeout_s: 1080"),
    ],
)
def test_doctor_says_what_to_change(old, new, sentence, project):
    findings = judge_partition(site_of(project, **{old: new}), parse_partitions(SINFO, "gpu"))
    assert any(not f.ok and sentence in f.says for f in findings), findings


def test_a_cell_that_asks_for_more_than_the_partition_gives_is_told_the_sum(project):
    site = site_of(project, **{"partition: gpu": "partition: short"})
    found = judge_partition(site, parse_partitions(SINFO, "gpu"))
    (finding,) = [f for f in found if f.what == "time limit"]
    assert (
        "ends jobs after 60 min, a cell asks for 95 (30 to make its data, 60 to run" in finding.says
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "gpu|2|24|190000|gpu:a100:4|5-00:00:00|up|ib",
            "4 node(s) with 4 titanrtx (ib,turing); 2 node(s) with 4 a100 (ib); "
            "write slurm.gpu_type: one of a100, titanrtx",
        ),
        (
            "gpu|2|24|190000|gpu:titanrtx:4|5-00:00:00|up|opa,turing",
            "write slurm.constraint: one of the features",
        ),
    ],
)
def test_several_kinds_of_node_in_one_partition_are_a_doubt(line, sentence, project):
    site = site_of(project, **{"gpu_type: titanrtx": "gpu_type: null"})
    partitions = parse_partitions(f"{SINFO}{line}\n", "gpu")
    (finding,) = [f for f in judge_partition(site, partitions) if f.doubtful]
    assert finding.ok
    assert sentence in finding.says
    chosen = site_of(project, **{"gpu_type: titanrtx": "gpu_type: null\n  constraint: ib"})
    assert not [f for f in judge_partition(chosen, partitions) if f.doubtful]
    assert not [f for f in judge_partition(site_of(project), partitions) if f.doubtful]


def test_nodes_that_differ_in_memory_only_are_one_kind(project):
    site = site_of(project, **{"gpu_type: titanrtx": "gpu_type: null"})
    more = "gpu|1|24|380000|gpu:titanrtx:4(S:0)|5-00:00:00|up|ib,turing\n"
    found = judge_partition(site, parse_partitions(SINFO + more, "gpu"))
    assert not [f for f in found if f.doubtful]


GPUS = [{"index": index, "name": "TITAN RTX", "error": None} for index in range(4)]
NODE = {
    "host": "n1",
    "task": "0",
    "python": "3.11.7",
    "ddlbench": "1.0",
    "clock_offset_s": 0.1,
    "address": "10.0.0.1",
    "address_error": None,
    "own_name_is": "10.0.0.1",
    "visible_gpus": "0,1,2,3",
    "torch": "2.13.0",
    "torch_cuda": "12.6",
    "gpus": GPUS,
    "scratch": "/scratch",
    "scratch_error": None,
    "scratch_free_bytes": 10**12,
    "port": 4000,
    "unreachable": [],
    "met": 2,
}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"torch": None}, "run make setup"),
        ({"torch_cuda": None}, "is a build for CPUs"),
        ({"gpus": []}, "sees no GPU, the site uses 4"),
        ({"gpus": GPUS[:3]}, "sees 3 GPU(s), the site uses 4"),
        ({"gpus": GPUS[:1]}, "write devices_share_gpu: true"),
        (
            {"gpus": [*GPUS[:3], {**GPUS[3], "error": "no kernel image is available"}]},
            "GPU 3 (TITAN RTX) does not compute: no kernel image is available",
        ),
        (
            {"scratch_error": "/s cannot be used: denied; write another scratch"},
            "/s cannot be used",
        ),
        ({"met": 1}, "met 1 of 2 nodes"),
        ({"unreachable": ["n2 (10.0.0.2)"]}, "write another interface"),
        ({"address_error": "n1 has no network interface 'ib0'"}, "no network interface"),
        ({"own_name_is": "127.0.0.1"}, "Horovod between nodes will fail"),
    ],
)
def test_doctor_reads_the_nodes(changes, sentence, project):
    site = site_of(project)
    good = judge_nodes(site, 2, [NODE, {**NODE, "host": "n2"}], "")
    assert all(finding.ok for finding in good)
    findings = judge_nodes(site, 2, [{**NODE, **changes}, {**NODE, "host": "n2"}], "")
    assert [f.what.split(":")[0] for f in findings if not f.ok] == ["n1"]
    assert any(sentence in f.says for f in findings if not f.ok)


def test_one_gpu_will_do_where_devices_share_it(project):
    site = replace(site_of(project), devices_share_gpu=True)
    findings = judge_nodes(site, 1, [{**NODE, "gpus": GPUS[:1], "met": 1}], "")
    assert all(finding.ok for finding in findings)
    assert any("all 4 devices of the node share one" in finding.says for finding in findings)


def test_doctor_counts_the_nodes_that_met(project):
    good = judge_nodes(site_of(project), 2, [NODE, {**NODE, "host": "n2"}], "")
    assert any("2 of 2 node(s): n1, n2" in f.says for f in good)
    assert any("reaches the other 1 of 2 nodes" in f.says for f in good)
    findings = judge_nodes(site_of(project), 2, [NODE], "slurmstepd: error: n2 died")
    assert not findings[0].ok
    assert findings[0].says == "1 of 2 nodes answered (n1): slurmstepd: error: n2 died"
    assert len(findings) == 4  # what the other one said is not lost


@pytest.mark.parametrize(
    ("changes", "what", "sentence"),
    [
        ({"python": "3.12.1"}, "Python", "n1: 3.11.7, n2: 3.12.1"),
        ({"ddlbench": "0.9"}, "ddlbench", "use one environment that all nodes share"),
    ],
)
def test_nodes_with_other_programs_are_wrong(changes, what, sentence, project):
    findings = judge_nodes(site_of(project), 2, [NODE, {**NODE, "host": "n2", **changes}], "")
    (wrong,) = [finding for finding in findings if not finding.ok]
    assert wrong.what == what
    assert sentence in wrong.says


def test_clocks_that_are_apart_are_a_doubt(project):
    late = {**NODE, "host": "n2", "clock_offset_s": 90.0}
    findings = judge_nodes(site_of(project), 2, [NODE, late], "")
    assert all(finding.ok for finding in findings)
    (doubt,) = [finding for finding in findings if finding.doubtful]
    assert doubt.says.startswith("clocks of the nodes are 90 s apart")


def test_doctor_tells_when_the_job_did_not_run(project):
    site = site_of(project)
    (finding,) = judge_nodes(site, 2, [], "srun: error: Invalid account")
    assert not finding.ok
    assert "Invalid account" in finding.says
    with pytest.raises(ConfigError, match="make demo"):
        doctor.examine(load_site(str(_local(project))), 1)


def _local(project):
    path = project / "config" / "sites" / "here.yaml"
    path.write_text("device: cpu\nlauncher: local\n")
    return path
