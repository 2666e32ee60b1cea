"""What is wrong with a site, known on the login node; sbatch is made up."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddlbench.cluster import checks, preflight
from ddlbench.cluster.checks import (
    Finding,
    Option,
    judge_request,
    options_of,
    sbatch_refuses,
)
from ddlbench.cluster.preflight import examine
from ddlbench.commands.site import show_findings
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Container, Site, Slurm, load_site
from ddlbench.slurm import partitions
from ddlbench.slurm.jobs import SlurmError
from ddlbench.slurm.partition_limits import PartitionLimits
from ddlbench.slurm.partitions import parse_kinds
from ddlbench.workflow import guards

SINFO = "gpu|4|24|190000|gpu:titanrtx:4|5-00:00:00|up|ib\n"
UNFIT = "Requested node configuration is not available"
POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


def site(**changes) -> Site:
    """A site whose jobs the cluster of this file takes."""
    slurm = Slurm(**{"account": "lab", "partition": "gpu", **changes.pop("slurm", {})})
    example = load_site("slurm-example", as_example=True)
    values = {"scratch": "/tmp", "memory_per_device_mb": 40_000, "cell_timeout_s": 3600, **changes}
    return replace(example, **values, slurm=slurm)


class Cluster:
    """An sbatch that checks one thing after the other, as slurmctld does."""

    account, qos, partition = "lab", ("normal",), "gpu"
    nodes, gpus, memory_mb, cpus, features = 4, 4, 190_000, 24, ("ib",)

    def __init__(self) -> None:
        self.asks = 0

    def refuses(self, words: Sequence[str]) -> str:
        self.asks += 1
        options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
        for wrong, refusal in (
            (options.get("account", self.account) != self.account, "Invalid account"),
            (options.get("partition", "gpu") != "gpu", "Invalid partition name specified"),
            (options.get("qos", "normal") not in self.qos, "Invalid qos specification"),
            (options.get("constraint", "ib") not in self.features, "Invalid feature specification"),
            ("fpga" in options.get("gres", ""), "Invalid generic resource (gres) specification"),
            (self._unfit(options), UNFIT),
        ):
            if wrong:
                return refusal
        return ""

    def _unfit(self, options: dict[str, str]) -> bool:
        kind, _, count = options.get("gres", "gpu:0").removeprefix("gpu:").rpartition(":")
        tasks = int(options.get("ntasks-per-node", 1))
        return (
            kind not in ("", "titanrtx")
            or int(count) > self.gpus
            or int(options.get("nodes", 1)) > self.nodes
            or int(options.get("mem", 0)) > self.memory_mb
            or tasks * int(options.get("cpus-per-task", 1)) > self.cpus
            or options.get("exclude") == "n[1-4]"
        )


def findings_of(cluster_site: Site, seen: Sequence[str] = (), nodes: int = 4) -> list[Finding]:
    options = options_of(cluster_site, nodes, cluster_site.devices_per_node)
    return judge_request(options, Cluster().refuses, set(seen))


def test_a_right_request_needs_one_question():
    cluster = Cluster()
    assert judge_request(options_of(site(), 4, 4), cluster.refuses, set()) == []
    assert cluster.asks == 1


def test_several_mistakes_are_all_named_at_once():
    wrong = site(
        slurm={"account": "lob", "partition": "gpuu", "qos": "long", "constraint": "opa"},
    )
    findings = findings_of(wrong)
    assert [finding.what for finding in findings] == ["account", "partition", "qos", "constraint"]
    assert not any(finding.ok for finding in findings)
    assert findings[0].says == "--account=lob: Invalid account; change slurm.account"


@pytest.mark.parametrize(
    ("changes", "what", "option"),
    [
        ({"slurm": {"gres": "fpga"}}, "GRES", "--gres=fpga:4"),
        ({"slurm": {"gpu_type": "h100"}}, "GRES", "--gres=gpu:h100:4"),
        ({"memory_per_device_mb": 90_000}, "memory_per_device_mb", "--mem=360000"),
        ({"cpus_per_device": 7}, "cpus_per_device", "--cpus-per-task=7"),
        ({"slurm": {"extra": "--exclude=n[1-4]"}}, "extra", "--exclude=n[1-4]"),
        ({"slurm": {"exclude": ("n[1-4]",)}}, "exclude", "--exclude=n[1-4]"),
    ],
)
def test_where_slurm_does_not_say_what_fits_no_node_it_is_tried(changes, what, option):
    (finding,) = findings_of(site(**changes))
    assert finding.what == what
    assert option in finding.says
    assert not finding.ok


def test_two_mistakes_in_what_a_node_must_have_are_both_named():
    wrong = site(slurm={"gpu_type": "h100"}, memory_per_device_mb=90_000)
    assert {finding.what for finding in findings_of(wrong)} == {"GRES", "memory_per_device_mb"}
    assert [finding.what for finding in findings_of(site(), nodes=5)] == ["nodes"]


def test_what_sinfo_has_named_is_not_repeated_and_nor_is_what_follows_from_it():
    many = site(devices_per_node=8, memory_per_device_mb=90_000)
    assert findings_of(many, seen=["GRES"]) == []
    assert findings_of(site(slurm={"partition": "gpuu"}), seen=["partition"]) == []


def test_a_wrong_partition_is_no_reason_to_judge_nodes_of_another_one():
    wrong = site(slurm={"partition": "gpuu", "gpu_type": "h100"})
    assert [finding.what for finding in findings_of(wrong)] == ["partition"]


def test_a_refusal_that_nobody_understands_is_quoted():
    (finding,) = judge_request(options_of(site(), 4, 4), lambda _: "a filter says no", set())
    assert (finding.what, finding.ok, finding.doubtful) == ("sbatch", True, True)
    assert finding.says == "it refuses the job: a filter says no"
    assert judge_request(options_of(site(), 4, 4), lambda _: "a filter says no", {"nodes"}) == []


@pytest.mark.parametrize("jobs", [True, False])
def test_a_limit_on_jobs_is_a_doubt_while_jobs_are_there_to_end(jobs, monkeypatch):
    monkeypatch.setattr(partitions, "has_jobs", lambda: jobs)
    words = f"QOSMaxSubmitJobPerUserLimit: {POLICY}"
    (finding,) = judge_request(options_of(site(), 4, 4), lambda _: words, set())
    assert (finding.ok, finding.doubtful) == (jobs, jobs)
    assert ("submitted as others end" in finding.says) == jobs


def test_nodes_that_are_down_are_a_doubt():
    words = "Required node not available (down, drained or reserved)"
    (finding,) = judge_request(options_of(site(), 4, 4), lambda _: words, set())
    assert finding.ok and finding.doubtful


def test_an_sbatch_that_does_not_answer_is_a_doubt():
    def silent(_words):
        raise SlurmError("sbatch did not answer within 20 s")

    (finding,) = judge_request([Option("nodes", "--nodes=1")], silent, set())
    assert finding.ok and finding.doubtful
    assert "did not answer" in finding.says


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", ""),
        ("echo 'allocation failure: Invalid qos' >&2; exit 1", "Invalid qos"),
    ],
)
def test_sbatch_only_tests_the_request(script, words, tmp_path, monkeypatch):
    program = tmp_path / "sbatch"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sbatch_refuses(["--nodes=2"]) == words
    assert (tmp_path / "words").read_text() == "--test-only --nodes=2 --wrap=true\n"


@pytest.fixture
def login_node(tmp_path, monkeypatch):
    """A login node in a folder that nodes see, with a SLURM that takes all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "missing_commands", list)
    monkeypatch.setattr(preflight, "node_kinds", lambda: parse_kinds(SINFO, "gpu"))
    monkeypatch.setattr(preflight, "accounts", lambda: ["lab"])
    monkeypatch.setattr(preflight, "qos_names", lambda: ["normal"])
    monkeypatch.setattr(preflight, "unknown_nodes", lambda names: re.findall(r"n9", names))
    monkeypatch.setattr(checks, "partition_limits", lambda _names: [])
    monkeypatch.setattr(preflight, "sbatch_refuses", Cluster().refuses)
    monkeypatch.setattr(preflight, "_file_system", lambda _folder: "nfs4")
    return tmp_path


def looks(wrong: Site, environment: dict[str, str] | None = None) -> list[Finding]:
    """Findings that need a look."""
    findings = examine(wrong, environment=environment or {})
    return [finding for finding in findings if not finding.ok or finding.doubtful]


def here(folder) -> Site:
    (folder / "scratch").mkdir(exist_ok=True)
    return site(scratch=str(folder / "scratch"))


def test_a_good_site_gives_no_cause_for_a_look(login_node):
    assert looks(here(login_node)) == []


def test_without_slurm_the_missing_commands_and_all_else_are_named(login_node, monkeypatch):
    monkeypatch.setattr(preflight, "missing_commands", lambda: ["sbatch", "squeue"])
    wrong = replace(here(login_node), setup=["false"])
    first, setup = looks(wrong)
    assert first.says.startswith("sbatch and squeue are not in PATH; run this on a login node")
    assert setup.what == "setup"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("--comment='two words", ["No closing quotation", "close the quote"]),
        ("--mem=2000 --wait", ["the memory and --wait", "take it out"]),
        ("--partition=short", ["the partition"]),
        ("--requeue", ["--requeue"]),
        ("-W", ["--wait"]),
        ("--array=1-3", ["--array"]),
    ],
)
def test_options_that_the_workflow_sets_are_named_in_one_sentence(extra, words, login_node):
    wrong = here(login_node)
    (finding,) = looks(replace(wrong, slurm=replace(wrong.slurm, extra=extra)))
    assert (finding.what, finding.ok) == ("extra", False)
    assert all(word in finding.says for word in [*words, repr(extra)])


@pytest.mark.parametrize(
    ("limits", "what", "sentence"),
    [
        (
            {"memory_mb": 100_000},
            "memory_per_device_mb",
            "gpu gives a job at most 100000 MB on a node, one on 4x4 asks for 160000; "
            "write memory_per_device_mb: 25000, or another slurm.partition",
        ),
        ({"nodes": 2}, "nodes", "at most 2 nodes, one on 4x4 asks for 4; write nodes: 2,"),
        ({"cpus_per_node": 8}, "cpus_per_device", "asks for 24; write cpus_per_device: 2,"),
        ({"cpus_per_node": 3}, "cpus_per_device", "asks for 24; write fewer devices_per_node,"),
    ],
)
def test_a_limit_of_the_partition_is_told_before_a_job_waits_for_ever(
    limits, what, sentence, login_node, monkeypatch
):
    """sbatch takes such a job, unless the administrator enforces the limits."""
    tight = PartitionLimits("gpu", **limits)
    monkeypatch.setattr(checks, "partition_limits", lambda _names: [tight])
    wrong = replace(here(login_node), cpus_per_device=6)
    (finding,) = looks(wrong)
    assert (finding.what, finding.ok) == (what, False)
    assert sentence in finding.says
    both = [tight, PartitionLimits("short")]
    monkeypatch.setattr(checks, "partition_limits", lambda _names: both)
    assert looks(wrong) == []  # the other one takes it


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("Unable to contact slurm controller (connect failure)", "controller does not answer; try"),
        ("Could not establish a configuration source", "no SLURM answers here; run this on a"),
    ],
)
def test_a_controller_that_is_down_is_no_fault_of_the_file(
    words, sentence, login_node, monkeypatch, capsys
):
    def silent(_command, **_patience):
        raise SlurmError(words, words)

    monkeypatch.setattr(partitions, "ask", silent)
    monkeypatch.setattr(preflight, "node_kinds", partitions.node_kinds)
    right = here(login_node)
    (finding,) = looks(right)
    assert (finding.what, finding.ok) == ("SLURM", False)
    assert sentence in finding.says and words in finding.says
    assert show_findings([finding], right) == 1
    assert "to change in" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match="^no job was submitted:"):
        guards.check_cluster(right, [CELL])


@pytest.mark.parametrize(
    "key",
    [
        {"exclude": ("n1", "n9")},
        {"extra": "--nodelist=n[1-2],n9"},
        {"extra": "--hint=x -w n9"},
        {"extra": "-xn9"},
        {"extra": "--exclude 'n9'"},
    ],
)
def test_a_node_that_the_cluster_does_not_have_is_named(key, login_node, monkeypatch):
    """Sbatch says "Invalid node name specified" before it looks at anything else."""
    wrong = here(login_node)
    wrong = replace(wrong, slurm=replace(wrong.slurm, **key))
    judged = []
    monkeypatch.setattr(preflight, "sbatch_refuses", lambda words: judged.extend(words) or "")
    (finding,) = looks(wrong)
    (name,) = key
    assert finding.says == f"n9 is not a node of this cluster; change slurm.{name}"
    assert (finding.what, finding.ok) == (name, False)
    assert not any("n9" in word for word in judged)


def test_a_partition_with_too_few_nodes_waits_for_no_others(login_node):
    (finding,) = looks(replace(here(login_node), nodes=5))
    assert (finding.what, finding.ok) == ("nodes", False)


@pytest.mark.parametrize(
    "extra",
    [
        "--wckey=n8-xn9 --exclude=/n9",
        "--reservation=lab",
        "--wckey='a b'",
        "--wait-all-nodes=1",
        "",
    ],
)
def test_other_options_are_the_users(extra, login_node):
    good = here(login_node)
    assert looks(replace(good, slurm=replace(good.slurm, extra=extra))) == []


@pytest.mark.parametrize(
    ("key", "name", "sentence"),
    [
        ("account", "lob", "lob is not an account of yours; write slurm.account: one of lab"),
        ("qos", "long", "long is not a QOS; write slurm.qos: one of normal"),
    ],
)
@pytest.mark.parametrize("enforced", [True, False])
def test_a_name_that_the_accounting_does_not_know_is_told_once(
    key, name, sentence, enforced, request
):
    login_node = request.getfixturevalue("login_node")
    monkeypatch = request.getfixturevalue("monkeypatch")
    limits = ["associations", "limits", "qos"] if enforced else []
    monkeypatch.setattr(preflight, "enforced_limits", lambda: limits)
    if not enforced:  # SLURM takes any name
        monkeypatch.setattr(preflight, "sbatch_refuses", lambda _options: "")
    wrong = here(login_node)
    (finding,) = looks(replace(wrong, slurm=replace(wrong.slurm, **{key: name})))
    assert (finding.what, finding.ok, finding.says) == (key, not enforced, sentence)


def test_nodes_that_are_down_now_do_not_make_the_request_wrong(login_node, monkeypatch):
    rows = "".join(
        f"gpu|2|24|190000|gpu:titanrtx:4|5-00:00:00|up|ib|{state}\n" for state in ("mixed", "down*")
    )
    monkeypatch.setattr(preflight, "node_kinds", lambda: parse_kinds(rows, "gpu"))
    (doubt,) = looks(here(login_node))
    assert doubt.ok
    assert doubt.says == "2 can be used, others are not (2 down); cells on 4 wait"


def test_scratch_that_is_not_here_is_a_doubt_as_nodes_may_have_it(login_node):
    (doubt,) = looks(site(scratch="/no-such-disk/here"))
    assert doubt.ok
    assert doubt.says.startswith("there is no /no-such-disk/here on this node")
    assert looks(site(scratch="$ONLY_A_JOB_HAS_IT")) == []


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [
        (["true", "no-such-module load x"], "no-such-module: command not found"),
        (["false"], "the commands ended with 1 on this node"),
    ],
)
def test_set_up_that_fails_here_is_a_doubt(setup, sentence, login_node):
    (doubt,) = looks(replace(here(login_node), setup=setup))
    assert doubt.ok
    assert sentence in doubt.says


def test_set_up_that_does_not_end_is_a_doubt(login_node, monkeypatch):
    monkeypatch.setattr(preflight, "_SETUP_S", 0.2)
    (doubt,) = looks(replace(here(login_node), setup=["exec sleep 600"]))
    assert "did not end within 0.2 s" in doubt.says


def test_a_container_that_is_not_here_is_a_doubt(login_node):
    wrong = replace(here(login_node), container=Container(image="/no/image.sif"))
    (doubt,) = looks(wrong)
    assert doubt.says == "there is no /no/image.sif on this node"
    assert looks(replace(wrong, container=Container(image="docker://ddlbench"))) == []


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("SBATCH_QOS", "slurm.qos: x"),
        ("SBATCH_CONSTRAINT", "slurm.constraint: x"),
        ("SBATCH_RESERVATION", "slurm.extra: --reservation=x"),
    ],
)
def test_a_default_of_the_shell_that_would_have_decided_is_noted(name, write, login_node):
    (note,) = looks(here(login_node), {name: "x"})
    assert note.ok and note.doubtful
    assert f"{name}=x of this shell is not used; write {write} " in note.says


def test_an_account_of_the_shell_is_noted_unless_the_site_has_one(login_node):
    wanted = here(login_node)
    assert looks(wanted, {"SBATCH_ACCOUNT": "x"}) == []
    without = replace(wanted, slurm=replace(wanted.slurm, account=None))
    (note,) = looks(without, {"SBATCH_ACCOUNT": "x"})
    assert "write slurm.account: x into the site's file" in note.says


@pytest.mark.parametrize("system", ["tmpfs", "overlay"])
def test_a_folder_that_only_this_node_sees_is_a_doubt(system, login_node, monkeypatch):
    monkeypatch.setattr(preflight, "_file_system", lambda _folder: system)
    doubts = looks(here(login_node))
    assert {doubt.what for doubt in doubts} == {"folder"}
    assert f"alone ({system})" in doubts[0].says


def test_a_project_within_scratch_is_a_doubt(login_node):
    doubts = looks(site(scratch=str(login_node)))
    assert doubts[0].says.startswith(f"project: {login_node} lies in the site's scratch")


def test_a_folder_with_a_percent_sign_is_wrong(login_node, monkeypatch):
    (login_node / "50%").mkdir()
    monkeypatch.chdir(login_node / "50%")
    (finding,) = looks(here(login_node))
    assert not finding.ok
    assert "has a % in its name" in finding.says


CELL = Cell("mnist", "vgg11", "ddp", batch_size=8, nodes=2, devices_per_node=4)


def test_a_run_lists_all_that_is_wrong_before_any_job(login_node, capsys):
    wrong = here(login_node)
    wrong = replace(wrong, slurm=replace(wrong.slurm, account="lob", constraint="opa"))
    wrong = replace(wrong, setup=["false"])
    with pytest.raises(ConfigError, match="no job was submitted") as caught:
        guards.check_cluster(wrong, [CELL])
    lines = str(caught.value).splitlines()
    assert [line[:10] for line in lines[1:-1]] == ["  - accoun", "  - constr"]
    assert "ddlbench: note: setup: the commands ended with 1" in capsys.readouterr().err


def test_a_run_that_submits_nothing_is_not_checked(login_node):
    wrong = here(login_node)
    guards.check_cluster(replace(wrong, slurm=replace(wrong.slurm, account="lob")), [])
    guards.check_cluster(load_site("local"), [CELL])


def test_the_largest_cell_is_tested(login_node, monkeypatch):
    requests = []
    monkeypatch.setattr(preflight, "sbatch_refuses", lambda words: requests.append(words) or "")
    guards.check_cluster(here(login_node), [CELL, replace(CELL, nodes=1)])
    (request,) = requests
    assert {"--nodes=2", "--gres=gpu:4"} <= set(request)


def test_the_job_of_the_links_is_tested_too(login_node, monkeypatch):
    requests = []
    monkeypatch.setattr(preflight, "sbatch_refuses", lambda words: requests.append(words) or "")
    guards.check_cluster(here(login_node), [CELL], further=[(4, 4)])
    (request,) = requests
    assert "--nodes=4" in request


def test_options_of_extra_are_split_as_a_shell_does():
    listed = options_of(site(slurm={"extra": "--wckey='a b' --hint=x"}), 1, 1)
    extra = [option.text for option in listed if option.key == "slurm.extra"]
    assert extra == [*shlex.split("--wckey='a b'"), "--hint=x"]
