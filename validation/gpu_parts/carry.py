"""What a GPU machine without internet lacks, collected beforehand and installed beside the results.

::

    prepare   pip download, pip wheel   ->  <folder>/wheels    for Python 3.12 and this one
                                        ->  <folder>/sources   Horovod, cuda-samples
    install   <folder>/wheels           ->  <out>/site         only what does not import already

The machine's own Python stays as it is: ``<out>/site`` is on the path of this process and, by
PYTHONPATH, of those that it starts.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

__all__ = ["HOROVOD", "install", "missing", "on_path", "prepare"]

ROOT = Path(__file__).resolve().parents[2]

# Distribution and what it is imported as. Versions are those of envs/constraints.txt.
_WHEELS = {
    "jsonschema": "jsonschema",
    "jsonschema-specifications": "jsonschema_specifications",
    "referencing": "referencing",
    "rpds-py": "rpds",
    "attrs": "attr",
    "typing-extensions": "typing_extensions",
    "torchgpipe": "torchgpipe",
    # Horovod is compiled with it, and a Python 3.12 need not have it.
    "setuptools": "setuptools",
}
_FROM_SOURCE = "torchgpipe"
_EXPECTED = (
    *("torch", "torchvision", "numpy", "scipy", "pandas", "matplotlib", "networkx"),
    *("yaml", "click", "rich", "psutil", "safetensors", "PIL"),
)
HOROVOD = "horovod-0.28.1"
_GPU_PYTHON = "3.12"
_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64")
_SAMPLES = "https://github.com/NVIDIA/cuda-samples"
_SAMPLES_KEPT = ("Common", "cpp/Common", "p2pBandwidthLatencyTest", "LICENSE")
_CLONE_TIMEOUT_S = 120


def prepare(folder: Path) -> None:
    """Collect wheels and sources; needs internet.

    Args:
        folder: gets ``wheels`` and ``sources``; what it has of them is kept.

    Raises:
        subprocess.CalledProcessError: pip could not get one of them.
    """
    wheels, sources = folder / "wheels", folder / "sources"
    wheels.mkdir(parents=True, exist_ok=True)
    sources.mkdir(exist_ok=True)
    pinned = _pinned()
    wanted = [_requirement(name, pinned) for name in _WHEELS if name != _FROM_SOURCE]
    binary = ("download", "--no-deps", "--only-binary=:all:", "--dest", str(wheels))
    platforms = [option for name in _PLATFORMS for option in ("--platform", name)]
    _pip(*binary, *platforms, "--python-version", _GPU_PYTHON, "--implementation", "cp", *wanted)
    _pip(*binary, *wanted)
    # Its last release predates build isolation: it needs the setuptools that is here.
    as_is = ("--no-deps", "--no-build-isolation")
    _pip("wheel", *as_is, "--wheel-dir", str(wheels), _requirement(_FROM_SOURCE, pinned))
    if not (sources / f"{HOROVOD}.tar.gz").is_file():
        release = HOROVOD.replace("-", "==")
        _pip("download", *as_is, "--no-binary", "horovod", "--dest", str(sources), release)
    _take_samples(sources / "cuda-samples")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        print(f"{path.stat().st_size / 1e6:7.2f} MB  {path.relative_to(folder)}")
    print(f"{sum(path.stat().st_size for path in files) / 1e6:7.2f} MB  in all in {folder}")


def install(carried: Path, out: Path) -> None:
    """Put what this Python lacks into ``<out>/site``, and that on the path.

    Child processes find it, this checkout's ``src`` and its ``validation`` folder, too.

    Args:
        carried: folder that :func:`prepare` made.
        out: folder of results.

    Raises:
        FileNotFoundError: ``carried`` holds no wheels.
        subprocess.CalledProcessError: pip could not install one.
    """
    wheels = (carried / "wheels").resolve()
    if not wheels.is_dir():
        raise FileNotFoundError(f"{carried}: no wheels in it; collect them with --prepare")
    site = (out / "site").resolve()
    site.mkdir(parents=True, exist_ok=True)
    on_path(site)
    lacking = [name for name, module in _WHEELS.items() if not _is_there(module)]
    if lacking:
        offline = ("--no-index", "--no-deps", "--no-compile", "--find-links", str(wheels))
        _pip("install", *offline, "--target", str(site), "--upgrade", *lacking)
        print(f"installed in {site}: {', '.join(lacking)}")
        importlib.invalidate_caches()


def missing() -> str | None:
    """One sentence on what this Python lacks for the study; None where nothing is missing."""
    absent = [name for name, module in _WHEELS.items() if not _is_there(module)]
    others = [name for name in _EXPECTED if not _is_there(name)]
    if absent:
        return (
            f"this Python lacks {', '.join([*absent, *others])}: run gpu.py --prepare DIR on a "
            "machine with internet, bring DIR here and name it with --carried DIR"
        )
    if others:
        return f"this Python ({sys.executable}) lacks {', '.join(others)}: install them"
    return None


def on_path(site: Path) -> None:
    """The own folders first, for this process and for those that it starts."""
    folders = [str(ROOT / "src"), str(ROOT / "validation"), str(site)]
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    before = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*folders, *before]))


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _pinned() -> dict[str, str]:
    """Versions by the distribution's name, as envs/constraints.txt has them."""
    lines = (ROOT / "envs" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, _, version in pairs}


def _requirement(name: str, pinned: dict[str, str]) -> str:
    return f"{name}=={pinned[name]}" if name in pinned else name


def _pip(*arguments: str) -> None:
    quiet = ("-qq", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", *arguments, *quiet], check=True)


def _take_samples(kept: Path) -> None:
    """NVIDIA's link test and the headers that it includes, where GitHub can be reached."""
    if kept.is_dir():
        return
    with tempfile.TemporaryDirectory() as work:
        clone = Path(work) / "cuda-samples"
        command = ["git", "clone", "--quiet", "--depth", "1", _SAMPLES, str(clone)]
        try:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                timeout=_CLONE_TIMEOUT_S,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            )
        except (OSError, subprocess.SubprocessError):
            print(
                f"{_SAMPLES} cannot be fetched: p2pBandwidthLatencyTest is not checked, unless "
                f"a checkout is put at {kept}"
            )
            return
        for path in _files_of_test(clone):
            target = kept / path.relative_to(clone)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _files_of_test(clone: Path) -> Iterable[Path]:
    for path in clone.rglob("*"):
        inside = path.relative_to(clone).as_posix()
        is_wanted = inside.startswith(_SAMPLES_KEPT) or f"/{_SAMPLES_KEPT[2]}/" in inside
        if path.is_file() and is_wanted and ".git/" not in inside:
            yield path
