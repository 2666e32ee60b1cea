"""What a result says it ran in, where its ranks ran in a container."""

from __future__ import annotations

import platform
import subprocess
import sys

from ddlbench.runtime.environment import provenance_of_run, rank_provenance, ranks_differ

RANK = {
    **{"host": "n1", "python": "3.12.1", "cpu_model": "a CPU"},
    "packages": {"ddlbench": "1.0.0", "torch": "9.0"},
}


def test_a_run_has_the_python_and_packages_of_its_ranks_and_the_workflows_snakemake():
    alone = provenance_of_run(1, {})
    assert alone["python"] == platform.python_version()
    actual = provenance_of_run(1, RANK)
    assert actual["python"] == "3.12.1"
    of_the_workflow = {
        name: version for name, version in alone["packages"].items() if "snakemake" in name
    }
    assert of_the_workflow
    # Above all no package that only the supervisor has.
    assert actual["packages"] == {**RANK["packages"], **of_the_workflow}
    assert actual["seed"] == alone["seed"] == 1


def test_a_rank_names_no_package_of_the_workflow():
    actual = rank_provenance()
    assert actual["python"] == platform.python_version()
    assert "torch" in actual["packages"]
    assert not any("snakemake" in name for name in actual["packages"])


def test_ranks_with_other_pythons_differ():
    assert ranks_differ([RANK, RANK]) == {}
    other = {**RANK, "python": "3.11.2"}
    assert ranks_differ([RANK, other]) == {"versions": "Python 3.11.2 and 3.12.1"}


def test_a_process_that_ends_at_once_leaves_what_libraries_printed():
    program = (
        "import ctypes\n"
        "from ddlbench.runtime.environment import end_process\n"
        "ctypes.CDLL(None).puts(b'NCCL version')\n"
        "end_process(3)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "NCCL version\n")
