"""Finding, building and running link tests, without a GPU."""

import shutil

import pytest
from p2p_printer import printed

from ddlbench.experiment.errors import ConfigError
from ddlbench.interconnect import p2p_binary
from ddlbench.interconnect.p2p_binary import find_or_build_p2p, run_p2p

NAME = "p2pBandwidthLatencyTest"
# Fails as the real test does where there is no driver.
SOURCE = r"""
#include <cstdio>
#include <cstdlib>
#include <helper_cuda.h>
int main() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    printf("Cuda failure %s:%d: '%s'\n", __FILE__, __LINE__, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
  }
  printf("%d devices, " MARK "\n", count);
}
"""
LAYOUTS = {
    "newest": ("cpp/5_Domain_Specific", "cpp/Common"),
    "12.x": ("Samples/5_Domain_Specific", "Common"),
    "11.5 checkout": ("Samples", "Common"),
    "11.5 toolkit": ("1_Utilities", "common/inc"),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No such test in PATH or in a toolkit, and a cache of our own."""
    which = shutil.which
    monkeypatch.setattr(
        p2p_binary.shutil, "which", lambda name: None if name == NAME else which(name)
    )
    monkeypatch.setattr(p2p_binary, "_OLD_SAMPLES", tmp_path / "nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def checkout(top, layout, source=SOURCE, header='#define MARK "ours"\n'):
    folder, include = LAYOUTS[layout]
    (top / folder / NAME).mkdir(parents=True)
    (top / folder / NAME / f"{NAME}.cu").write_text(source)
    (top / include).mkdir(parents=True)
    (top / include / "helper_cuda.h").write_text(header)
    return top


def program(path, text):
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)
    return path


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


@needs_nvcc
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkout_of_any_age_is_built_once(tmp_path, layout):
    top = checkout(tmp_path / "samples", layout)
    binary = find_or_build_p2p({"cuda_samples": str(top)})
    assert binary is not None
    made = binary.stat().st_mtime_ns
    assert find_or_build_p2p({"cuda_samples": str(top)}) == binary
    assert binary.stat().st_mtime_ns == made
    assert [path.name for path in binary.parent.iterdir()] == [binary.name]


@needs_nvcc
def test_a_build_that_fails_says_so(tmp_path):
    top = checkout(tmp_path / "samples", "12.x", source="int main() { return nothing; }\n")
    with pytest.raises(ConfigError, match="cannot build .*nothing") as caught:
        find_or_build_p2p({"cuda_samples": str(top)})
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "ddlbench").iterdir()) == []


@needs_nvcc
def test_a_node_without_a_driver_is_one_sentence(tmp_path):
    binary = find_or_build_p2p({"cuda_samples": str(checkout(tmp_path / "samples", "newest"))})
    if b"Cuda failure" not in p2p_binary.subprocess.run([binary], capture_output=True).stdout:
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=r"run 1 of 5\) line 1: the test failed: .*; run it"):
        run_p2p(binary)


def test_values_are_medians_of_all_runs(tmp_path):
    for run, factor in enumerate((1.0, 9.0, 3.0, 2.0, 0.5)):

        def change(key, rows, factor=factor):
            return [[value * factor for value in row] for row in rows]

        (tmp_path / f"run{run}").write_text(printed(2, reads=True, change=change))
    fake = program(
        tmp_path / "fake",
        f'cd {tmp_path}; n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; cat "run$n"\n'
        f'echo "$@" > options\n',
    )
    pairs = run_p2p(find_or_build_p2p({"p2p_binary": str(fake)}))
    assert {pair["repeats"] for pair in pairs} == {5}
    assert pairs[0]["bandwidth_bytes_per_s"][0][1] == pytest.approx(2 * 101e9)
    assert pairs[0]["latency_s"][1][0] == pytest.approx(2 * 30e-6)
    assert (tmp_path / "options").read_text() == "--p2p_read\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("echo 'error while loading shared libraries' >&2; exit 127", "shared libraries"),
        ("exit 3", "failed: exit status 3"),
        ("echo hello", "this is no output of p2pBandwidthLatencyTest"),
    ],
)
def test_a_program_that_fails_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        run_p2p(program(tmp_path / "fake", text))
    assert "\n" not in str(caught.value)


def test_nothing_to_find_is_no_error():
    assert find_or_build_p2p({"p2p_binary": None, "cuda_samples": None}) is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"p2p_binary": "/no/such/test"}, "interconnect.p2p_binary: /no/such/test on .* is no pro"),
        ({"cuda_samples": "/no/such/folder"}, "set interconnect.cuda_samples to the top of a"),
    ],
)
def test_wrong_paths_are_one_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        find_or_build_p2p(settings)


def test_a_checkout_without_headers_is_told(tmp_path):
    top = checkout(tmp_path / "samples", "12.x")
    (top / "Common" / "helper_cuda.h").unlink()
    with pytest.raises(ConfigError, match="but not Common/helper_cuda.h"):
        find_or_build_p2p({"cuda_samples": str(top)})
