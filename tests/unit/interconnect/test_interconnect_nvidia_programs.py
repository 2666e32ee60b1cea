"""Finding and building NVIDIA's link tests, and how to get them, without a GPU."""

import shutil

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect import nvidia_programs
from ddlbench.interconnect.nvidia_programs import (
    fetch,
    find_or_build_p2p,
    find_p2p,
    main,
    state_of_p2p,
    tag_for,
)
from ddlbench.interconnect.p2p import run_p2p

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
        nvidia_programs.shutil, "which", lambda name: None if name == NAME else which(name)
    )
    monkeypatch.setattr(nvidia_programs, "_USUAL_TOOLKIT", tmp_path / "nowhere")
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "EBROOTCUDA"):
        monkeypatch.delenv(name, raising=False)
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
    if b"Cuda failure" not in nvidia_programs.subprocess.run([binary], capture_output=True).stdout:
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=r"run 1 of 5\) line 1: the test failed: .*; run it"):
        run_p2p(binary)


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


def made(path):
    """A program at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return program(path, "exit 0\n")


@pytest.mark.parametrize(
    "place",
    [
        f"extras/demo_suite/{NAME}",
        f"samples/1_Utilities/{NAME}/{NAME}",
        f"samples/bin/x86_64/linux/release/{NAME}",
        f"samples/bin/sbsa/linux/release/{NAME}",
    ],
)
@pytest.mark.parametrize("variable", ["CUDA_HOME", "EBROOTCUDA"])
def test_a_toolkit_is_looked_through(tmp_path, monkeypatch, variable, place):
    monkeypatch.setenv(variable, str(tmp_path / "cuda"))
    assert find_p2p({}) is None
    binary = made(tmp_path / "cuda" / place)
    assert find_p2p({}) == binary
    binary.chmod(0o644)
    assert find_p2p({}) is None


@pytest.mark.parametrize(
    "place",
    [
        f"Samples/5_Domain_Specific/{NAME}/{NAME}",
        f"bin/x86_64/linux/release/{NAME}",
        f"build/Samples/5_Domain_Specific/{NAME}/{NAME}",
        f"cpp/5_Domain_Specific/{NAME}/build/{NAME}",
    ],
)
def test_what_make_or_cmake_built_in_a_checkout_is_taken(tmp_path, place):
    binary = made(tmp_path / "samples" / place)
    assert find_or_build_p2p({"cuda_samples": str(tmp_path / "samples")}) == binary


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ((12, 8), (12, 8)),
        ((12, 6), (12, 5)),
        ((12, 7), (12, 5)),
        ((11, 7), (11, 6)),
        ((14, 2), (13, 0)),
        ((10, 2), (11, 0)),
    ],
)
def test_a_version_takes_the_newest_tag_that_is_no_newer(version, tag):
    assert tag_for(version, nvidia_programs._TAGS) == tag


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """An nvcc and a git that are scripts: of CUDA 12.6, with the tags of a repository."""
    folder = tmp_path / "tools"
    folder.mkdir()
    program(
        folder / "nvcc",
        'if [ "$1" = --version ]; then echo "Cuda compilation tools, release 12.6, V12.6.20"; '
        'else printf "#!/bin/bash\\necho built\\n" > "${@: -1}"; chmod +x "${@: -1}"; fi\n',
    )
    source = checkout(tmp_path / "source", "12.x")
    program(
        folder / "git",
        f'echo "$@" >> {tmp_path}/asked\n'
        'if [ "$1" = ls-remote ]; then\n'
        "  for tag in v12.4 v12.4.1 v12.5 v12.8 v9.2; do printf 'a\\trefs/tags/%s\\n' $tag; done\n"
        f'else cp -r {source} "${{@: -1}}"; fi\n',
    )
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_make_p2p_clones_the_fitting_tag_once_and_leaves_the_test_where_sites_look(
    tools, tmp_path, capsys
):
    main()
    main()
    binary = tmp_path / "cache" / "ddlbench" / NAME
    assert find_p2p({}) == binary
    assert nvidia_programs.subprocess.run([binary], capture_output=True).stdout == b"built\n"
    calls = (tmp_path / "asked").read_text()
    assert calls.count("clone --quiet") == 1
    assert "--branch v12.5 " in calls
    assert str(binary) in capsys.readouterr().out


def test_a_repository_out_of_reach_is_one_sentence(tools, tmp_path):
    program(tools / "git", "echo 'fatal: Could not resolve host: github.com' >&2; exit 128\n")
    with pytest.raises(ConfigError, match=r"v12\.5, cannot be cloned: .* move it to ") as caught:
        fetch(tmp_path / "there")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "there").iterdir()) == []


def test_a_checkout_that_somebody_brought_is_built_without_internet(tools, tmp_path):
    program(tools / "git", "exit 128\n")
    brought = tmp_path / "cache" / "ddlbench" / "cuda-samples-v12.4"
    shutil.copytree(tmp_path / "source", brought)
    assert fetch(brought.parent) == brought
    main()
    assert find_p2p({}) is not None


def test_a_cache_that_cannot_be_written_is_one_sentence(tools, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SystemExit, match="cannot be made: .*; set XDG_CACHE_HOME"):
        main()


def test_a_toolkit_that_is_no_folder_holds_nothing(tmp_path, monkeypatch):
    (tmp_path / "cuda").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert find_p2p({}) is None


def test_a_compiler_that_names_no_version_leaves_the_tag_open(tools):
    program(tools / "nvcc", "echo unknown\n")
    assert "--branch vX.Y of your CUDA" in state_of_p2p({})[1]


def test_without_a_compiler_make_p2p_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="no nvcc in PATH"):
        main()


def test_without_the_test_the_user_hears_how_to_get_it(tools):
    state, says = state_of_p2p({})
    assert state == "absent"
    assert "our own copies will measure" in says
    assert "make p2p" in says
    assert "--branch v12.5 https://github.com/NVIDIA/cuda-samples" in says


def test_what_the_site_names_is_there_or_wrong(tools, tmp_path):
    binary = made(tmp_path / "mine")
    assert state_of_p2p({"p2p_binary": str(binary)}) == ("there", str(binary))
    state, says = state_of_p2p({"p2p_binary": str(tmp_path / "none")})
    assert (state, "give its path on the nodes" in says) == ("wrong", True)
    state, says = state_of_p2p({"cuda_samples": str(tmp_path / "source")})
    assert (state, says.startswith("nvcc will build it from")) == ("there", True)
    (tools / "nvcc").unlink()
    state, says = state_of_p2p({"cuda_samples": str(tmp_path / "source")})
    assert (state, "no nvcc in PATH" in says) == ("wrong", True)
