"""`ddlbench site init` and `ddlbench site doctor`, on the words of clusters that are not here."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ddlbench import cli
from ddlbench.cluster import doctor, init
from ddlbench.cluster.checks import judge_partition
from ddlbench.cluster.doctor import ask_nodes, judge_nodes
from ddlbench.cluster.init import Answers, choose, site_text, write_site
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.site import load_site
from ddlbench.planning.budget import job_minutes
from ddlbench.slurm.partitions import parse_kinds

SINFO = """\
cpu|20|64|256000|(null)|2-00:00:00|up|(null)
gpu|4|24|190000|gpu:titanrtx:4(S:0-1)|5-00:00:00|up|ib,turing
short|2|24|190000+|gpu:4|1:00:00|up|ib
old|1|8|32000|gpu:k80:2|infinite|down|(null)
"""
MIG_BESIDE = """\
gpu|60|48|500000|gpu:a100_1g.5gb:8(S:0-1)|1-00:00:00|up|mig
gpu|40|48|500000|gpu:a100:4(S:0-1)|1-00:00:00|up|nvlink
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder of our own, so that no site file is written into the real one."""
    (tmp_path / "Snakefile").write_text("")
    (tmp_path / "config" / "sites").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster(monkeypatch):
    """Sets what sinfo prints, the default partition, and the user's accounts."""

    def prints(rows, default=None, accounts=()):
        monkeypatch.setattr(init, "node_kinds", lambda: parse_kinds(rows, default))
        monkeypatch.setattr(init, "accounts", lambda: list(accounts))
        monkeypatch.setattr(init, "partition_limits", lambda _: [])

    return prints


def answers(name="alpha", which="gpu", **changes):
    selection = choose(parse_kinds(SINFO, "gpu"), partition_name=which)
    values = {
        "name": name,
        "selection": selection,
        "account": "proj42",
        "scratch": "/scratch/$USER",
        "interface": "ib0",
    }
    return Answers(**{**values, **changes})


@pytest.mark.parametrize("which", ["gpu", "short", "cpu", "old"])
def test_what_init_writes_is_a_valid_site(which, project):
    written = answers(which=which)
    write_site(written)
    site = load_site("alpha")
    kind = written.selection.offer.kind
    assert site.slurm.partition == which
    assert site.nodes == kind.usable
    assert site.devices_per_node * site.cpus_per_device <= kind.cpus_per_node
    assert kind.time_limit_s is None or job_minutes(site) * 60 <= kind.time_limit_s
    assert all(f.ok for f in judge_partition(site, parse_kinds(SINFO, "gpu"))[1:])
    assert (site.slurm.gres == "") == (which == "cpu")


def test_keys_that_stand_there_as_comments_are_valid_without_the_mark(project):
    path = write_site(answers())
    lines = path.read_text().splitlines()
    marked = [line for line in lines if re.match(r" *# [a-z_0-9]+: ", line)]
    actual = {line.split(":")[0].strip(" #") for line in marked}
    assert actual == {"setup", "container", "interconnect", "qos", "constraint", "extra", "srun"}
    path.write_text(
        "\n".join(line.replace("# ", "", 1) if line in marked else line for line in lines)
    )
    site = load_site("alpha")
    assert site.setup
    assert site.container.image.startswith("/")
    assert site.interconnect.p2p_binary
    assert site.slurm.srun == ("--cpu-bind=cores",)
    assert all(getattr(site.slurm, key) for key in ("qos", "constraint", "extra", "partition"))
    assert "ib,turing" in next(line for line in marked if "constraint" in line)


def test_init_does_not_overwrite(project):
    write_site(answers())
    with pytest.raises(ConfigError, match="is there already"):
        write_site(answers())
    write_site(answers(account=None), overwrite=True)
    assert "account: null" in (project / "config" / "sites" / "alpha.yaml").read_text()


def run_init(*words, answers=None):
    result = CliRunner().invoke(
        cli.commands, ["site", "init", *words], input=answers, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_init_asks_for_what_slurm_cannot_know(project, cluster):
    cluster(SINFO, "gpu", ["proj1", "proj2"])
    run_init("beta", answers="short\nproj2\n/local\nib1\n")
    site = load_site("beta")
    assert (site.slurm.partition, site.slurm.account) == ("short", "proj2")
    assert (site.scratch, site.interface) == ("/local", "ib1")
    run_init("gamma", "--yes")
    assert load_site("gamma").slurm.partition == "gpu"


@pytest.mark.parametrize("answer", ["2", "a100_1g.5gb"])
def test_a_kind_of_node_is_shown_with_its_count_and_can_be_chosen(answer, project, cluster):
    cluster(MIG_BESIDE, None, ["def-x_cpu", "def-x_gpu"])
    output = run_init("beta", answers=f"\n{answer}\n\n\n\n")
    assert "gpu: 40 nodes of 4x a100, 60 nodes of 8x a100_1g.5gb (MIG slices)\n" in output
    assert "cannot work together" in output
    site = load_site("beta")
    assert (site.slurm.gpu_type, site.slurm.account) == ("a100_1g.5gb", "def-x_gpu")
    assert (site.nodes, site.devices_per_node) == (60, 1)


def test_a_partition_of_many_kinds_fits_the_terminal(project, cluster):
    kinds = [f"gpu:nvidia_{name}:4" for name in ("a100-sxm4-80gb", "h100_80gb_hbm3", "v100-sxm2")]
    cluster("".join(f"gpu|9|64|256000|{gres}|infinite|up|x|idle\n" for gres in kinds), "gpu")
    output = run_init("beta", answers="\n\n\n\n\n")
    assert max(map(len, output.splitlines())) <= 80, output
    assert "9 nodes of 4x nvidia_v100-sxm2" in " ".join(output.split())


TEXTS = ("4090", "on", "30001", "1e3", "null", "2024-01-01", "y", "0x1F", "~", 'a: "b" #c', "- x")


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_stays_a_text_in_the_file(text, project, cluster):
    gres = f"gpu:{text.replace(':', '')}:2"
    cluster(f'{text}|3|64|256000|{gres}|infinite|up|{text},it\'s "x": 1\n', None, [text])
    scratch = f"/{text}"
    run_init("beta", "--yes", "--scratch", scratch, "--interface", text)
    site = load_site("beta")
    assert (site.slurm.partition, site.slurm.account) == (text, text)
    assert (site.scratch, site.interface) == (scratch, text)
    assert site.slurm.gpu_type == text.replace(":", "")


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("beta", ["--scratch", ""], "no site is written: .*beta.yaml: scratch must not be empty"),
        ("beta", ["--account", "REPLACE_ME"], "no site is written: .*replace REPLACE_ME"),
        ("be ta", [], "its name is a folder of results"),
    ],
)
def test_what_is_no_site_is_not_written(name, words, sentence, project, cluster):
    cluster(SINFO, "gpu")
    with pytest.raises(ConfigError, match=sentence):
        CliRunner().invoke(
            cli.commands, ["site", "init", name, "--yes", *words], catch_exceptions=False
        )
    assert not list((project / "config" / "sites").iterdir())


def test_an_older_site_stays_when_the_new_one_is_refused(project, cluster):
    cluster(SINFO, "gpu")
    run_init("beta", "--yes")
    before = load_site("beta")
    words = ["site", "init", "beta", "--yes", "--overwrite", "--scratch", ""]
    with pytest.raises(ConfigError):
        CliRunner().invoke(cli.commands, words, catch_exceptions=False)
    assert load_site("beta") == before


def test_without_slurm_init_says_so(project, monkeypatch):
    monkeypatch.setenv("PATH", str(project))
    with pytest.raises(ConfigError, match=r"^no SLURM answers here.*slurm-example.yaml"):
        CliRunner().invoke(cli.commands, ["site", "init", "x", "--yes"], catch_exceptions=False)


def site_of(project, **changes):
    text = site_text(answers())
    for old, new in changes.items():
        text = text.replace(old, new)
    (project / "config" / "sites" / "alpha.yaml").write_text(text)
    return load_site("alpha")


def test_doctor_agrees_with_what_init_wrote(project):
    assert all(f.ok for f in judge_partition(site_of(project), parse_kinds(SINFO, "gpu")))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("partition: gpu", "partition: gpuu", "there is no partition 'gpuu'"),
        (
            "partition: gpu",
            "partition: old",
            "old is down; write another slurm.partition: one of cpu, gpu, short",
        ),
        ("partition: gpu", "partition: gpuu", "slurm.partition: one of cpu, gpu, short"),
        ("nodes: 4 ", "nodes: 9 ", "write nodes: 4"),
        ("gpu_type: titanrtx", "gpu_type: b200", "no b200; write slurm.gpu_type: one of titanrtx"),
        ("devices_per_node: 4", "devices_per_node: 8", "write devices_per_node: 4"),
        ("cell_timeout_s: 3600", "cell_timeout_s: 999999", "write cell_timeout_s: 429900"),
        ("partition: gpu", "partition: short", "cell_timeout_s: 2220 and stage_timeout_s: 1080"),
    ],
)
def test_doctor_says_what_to_change(old, new, sentence, project):
    findings = judge_partition(site_of(project, **{old: new}), parse_kinds(SINFO, "gpu"))
    assert any(not f.ok and sentence in f.says for f in findings), findings


def test_one_of_several_partitions_that_is_down_is_a_doubt(project):
    site = site_of(project, **{"partition: gpu": "partition: old,gpu"})
    findings = judge_partition(site, parse_kinds(SINFO, "gpu"))
    assert [(f.says, f.ok, f.doubtful) for f in findings if f.what == "partition"] == [
        ("gpu, 4 nodes, up", True, False),
        ("old is down; jobs run in gpu alone", True, True),
    ]


def test_a_cell_that_asks_for_more_than_the_partition_gives_is_told_the_sum(project):
    site = site_of(project, **{"partition: gpu": "partition: short"})
    actual = judge_partition(site, parse_kinds(SINFO, "gpu"))
    (finding,) = [f for f in actual if f.what == "time limit"]
    assert (
        "ends jobs after 60 min, a cell asks for 95 (30 to make its data, 60 to run" in finding.says
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "gpu|2|24|190000|gpu:a100:4|5-00:00:00|up|ib",
            "4 nodes with 4x titanrtx, 190000 MB (ib,turing); "
            "2 nodes with 4x a100, 190000 MB (ib); "
            "write slurm.gpu_type: one of a100, titanrtx",
        ),
        (
            "gpu|2|24|190000|gpu:titanrtx:4|5-00:00:00|up|opa,turing",
            "write slurm.constraint: ib or opa",
        ),
        (
            "gpu|2|24|380000|gpu:titanrtx:4|5-00:00:00|up|ib,turing",
            "380000 MB (ib,turing); no feature tells them apart",
        ),
    ],
)
def test_several_kinds_of_node_in_one_partition_are_a_doubt(line, sentence, project):
    site = site_of(project, **{"gpu_type: titanrtx": "gpu_type: null"})
    kinds = parse_kinds(f"{SINFO}{line}\n", "gpu")
    (finding,) = [f for f in judge_partition(site, kinds) if f.doubtful]
    assert finding.ok
    assert sentence in finding.says


@pytest.mark.parametrize(
    ("constraint", "doubts"), [("40gb", 0), ("40gb&ib", 0), ("ib", 1), ("[r1|r2]", 0)]
)
def test_two_kinds_of_one_type_are_a_doubt_unless_constrained(constraint, doubts, project):
    rows = "".join(
        f"gpu|4|24|190000|gpu:titanrtx:4|5-00:00:00|up|ib,{size}\n" for size in ("40gb", "80gb")
    )
    site = site_of(project, **{"gres:": f'constraint: "{constraint}"\n  gres:'})
    actual = [f for f in judge_partition(site, parse_kinds(rows, "gpu")) if f.doubtful]
    assert len(actual) == doubts
    assert all(f.what == "kinds of node" and "40gb or 80gb" in f.says for f in actual)


def test_doctor_tells_usable_nodes_from_others(project):
    rows = "gpu|4|24|190000|gpu:titanrtx:4|infinite|up|ib|idle\n" + "".join(
        f"gpu|1|24|190000|gpu:titanrtx:4|infinite|up|ib|{state}\n" for state in ("drained", "maint")
    )
    actual = judge_partition(site_of(project), parse_kinds(rows, "gpu"))
    assert [f.says for f in actual if f.what == "partition"] == [
        "gpu, 6 nodes, up, 4 of them usable (1 drained, 1 in maintenance)"
    ]


@pytest.mark.parametrize(("devices", "doubts"), [(1, 0), (2, 1)])
def test_several_slices_of_a_card_are_a_doubt(devices, doubts, project):
    site = site_of(
        project,
        **{
            "gpu_type: titanrtx": "gpu_type: a100_1g.5gb",
            "devices_per_node: 4": f"devices_per_node: {devices}",
        },
    )
    actual = [f for f in judge_partition(site, parse_kinds(MIG_BESIDE, "gpu")) if f.doubtful]
    assert len(actual) == doubts
    assert all("or a whole GPU as slurm.gpu_type: a100" in f.says for f in actual)


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
    "p2p_state": "there",
    "p2p": "/usr/bin/p2pBandwidthLatencyTest",
}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"torch": None}, "run make setup"),
        ({"torch_cuda": None}, "is a build for CPUs"),
        ({"gpus": []}, "sees no GPU, the site uses 4"),
        ({"gpus": GPUS[:3]}, "sees 3 GPUs, the site uses 4"),
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


def test_nodes_share_a_line_of_what_is_true_of_both(project):
    findings = judge_nodes(site_of(project), 2, [NODE, {**NODE, "host": "n2"}], "")
    assert [f.what for f in findings if "torch" in f.what] == ["n1, n2: torch"]


@pytest.mark.parametrize(("state", "mark"), [("absent", "??"), ("wrong", "!!"), ("there", "ok")])
def test_doctor_says_where_the_link_test_is(state, mark, project):
    report = {**NODE, "p2p_state": state, "p2p": "what to do", "met": 1}
    findings = judge_nodes(site_of(project), 1, [report], "")
    (actual,) = [finding for finding in findings if finding.what == "n1: p2pBandwidthLatencyTest"]
    marks = {"??": (True, True), "!!": (False, False), "ok": (True, False)}
    assert (actual.ok, actual.doubtful, actual.says) == (*marks[mark], "what to do")


def test_one_gpu_needs_no_link_test(project):
    site = replace(site_of(project), devices_per_node=1)
    findings = judge_nodes(site, 1, [{**NODE, "met": 1}], "")
    assert not [finding for finding in findings if "p2p" in finding.what]


def test_init_says_how_to_get_the_link_test(monkeypatch):
    monkeypatch.setattr(init, "state_of_p2p", lambda _: ("absent", "run `make p2p`"))
    assert init.link_test_remarks(answers().selection) == [
        "p2pBandwidthLatencyTest here: run `make p2p`"
    ]
    assert init.link_test_remarks(replace(answers().selection, device="cpu")) == []


def test_one_gpu_will_do_where_devices_share_it(project):
    site = replace(site_of(project), devices_share_gpu=True)
    findings = judge_nodes(site, 1, [{**NODE, "gpus": GPUS[:1], "met": 1}], "")
    assert all(finding.ok for finding in findings)
    assert any("all 4 devices of the node share one" in finding.says for finding in findings)


def test_doctor_counts_the_nodes_that_met(project):
    good = judge_nodes(site_of(project), 2, [NODE, {**NODE, "host": "n2"}], "")
    assert any("2 of 2 nodes: n1, n2" in f.says for f in good)
    assert any("reaches the other 1 of 2 nodes" in f.says for f in good)
    findings = judge_nodes(site_of(project), 2, [NODE], "slurmstepd: error: n2 died")
    assert not findings[0].ok
    assert findings[0].says == "1 of 2 nodes answered (n1): slurmstepd: error: n2 died"
    assert len(findings) == 5  # what the other one said is not lost


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


@pytest.mark.parametrize("content", [None, "#!/no/such/program\n"])
def test_an_sbatch_that_cannot_be_started_is_one_sentence(content, project, monkeypatch):
    site = site_of(project)
    if content is not None:
        (project / "sbatch").write_text(content)
        (project / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(project))
    reports, error = ask_nodes(site, "alpha", 1, 1.0, lambda _sentence: None)
    assert reports == []
    assert error.startswith("sbatch is not in PATH" if content is None else "sbatch cannot be")
