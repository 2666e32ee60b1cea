"""What a GPU machine without internet lacks, collected beforehand and installed beside the results.

::

    prepare   pip download, pip wheel   ->  <folder>/wheels    for Python 3.12
                                        ->  <folder>/sources   Horovod, cuda-samples
    install   <folder>/wheels           ->  <out>/site         only what is not there already

The machine's Python stays as it is: ``<out>/site`` is on the path of this process and, by
PYTHONPATH, of those that it starts. A wheel of Horovod that was compiled for that machine's Python
and torch may be put into ``<folder>/wheels``, too; else Horovod is compiled there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

__all__ = ["HOROVOD", "install", "missing", "on_path", "prepare"]

ROOT = Path(__file__).resolve().parents[2]

# What ddlbench and Snakemake need, and what they need in turn, but for what is there.
_WANTED = ("ddlbench", "torchgpipe", "deepspeed", "hjson")
_THERE = frozenset(
    canonicalize_name(name)
    for name in (
        *("torch", "torchvision", "numpy", "scipy", "pandas", "matplotlib", "networkx", "pillow"),
        *("pyyaml", "click", "rich", "psutil", "safetensors", "packaging", "jinja2", "requests"),
        *("nvidia-ml-py", "cloudpickle", "python-dateutil", "tqdm", "attrs", "typing-extensions"),
        *("filelock", "wrapt", "tabulate", "einops", "msgpack", "ninja", "py-cpuinfo"),
    )
)
_FROM_SOURCE = frozenset({"torchgpipe", "connection-pool", "deepspeed"})
_EXPECTED = (
    *("torch", "torchvision", "numpy", "scipy", "pandas", "matplotlib", "networkx", "pydantic"),
    *("yaml", "click", "rich", "psutil", "safetensors", "PIL", "jsonschema", "torchgpipe"),
)
_PLUGINS = ("deepspeed",)
HOROVOD = "horovod-0.28.1"
_DEEPSPEED = "==0.19.8"
_GPU_PYTHON = "3.12"
_PLATFORMS = tuple(
    f"{name}_x86_64"
    for name in ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_28")
)
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
    wanted = _needed()
    binary = [name + release for name, release in wanted.items() if name not in _FROM_SOURCE]
    platforms = [option for name in _PLATFORMS for option in ("--platform", name)]
    _pip(
        *("download", "--no-deps", "--only-binary=:all:", "--dest", str(wheels), *platforms),
        *("--python-version", _GPU_PYTHON, "--implementation", "cp", *binary),
    )
    # Their releases predate build isolation: they need the setuptools and torch that are here.
    as_is = ("--no-deps", "--no-build-isolation")
    os.environ["DS_BUILD_OPS"] = "0"
    for name in sorted(_FROM_SOURCE & set(wanted)):
        _pip("wheel", *as_is, "--wheel-dir", str(wheels), name + wanted[name])
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
    lacking = [wheel for wheel in sorted(wheels.glob("*.whl")) if not _is_installed(wheel)]
    strange = [wheel.name for wheel in lacking if not _fits(wheel)]
    if strange:
        print(f"not for this Python or machine, left out: {', '.join(strange)}")
        lacking = [wheel for wheel in lacking if wheel.name not in strange]
    if lacking:
        offline = ("--no-index", "--no-deps", "--no-compile")
        _pip("install", *offline, "--target", str(site), "--upgrade", *map(str, lacking))
        print(f"installed in {site}: {len(lacking)} wheels")
    for name in _PLUGINS:
        _declare(site, name)
    _program(site.parent / "bin" / "ddlbench")
    importlib.invalidate_caches()


def missing() -> str | None:
    """One sentence on what this Python lacks for the study; None where nothing is missing."""
    absent = [name for name in _EXPECTED if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return (
        f"this Python ({sys.executable}) lacks {', '.join(absent)}: run gpu.py --prepare DIR on a "
        "machine with internet, bring DIR here and name it with --carried DIR"
    )


def on_path(site: Path) -> None:
    """The folders of this checkout first, for this process and for those that it starts."""
    plugins = [str(ROOT / "plugins" / name / "src") for name in _PLUGINS]
    folders = [str(ROOT / "src"), str(ROOT / "validation"), *plugins, str(site)]
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    before = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*folders, *before]))


def _needed() -> dict[str, str]:
    """What must be carried: ``==`` and the version that is installed here, by name."""
    versions: dict[str, str] = {}
    waiting = list(_WANTED)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in versions or name in _THERE:
            continue
        try:
            versions[name] = f"=={version(name)}"
        except PackageNotFoundError:
            versions[name] = _DEEPSPEED if name == "deepspeed" else ""
            continue
        for line in requires(name) or ():
            need = Requirement(line)
            target = {"extra": "", "python_version": _GPU_PYTHON}
            if need.marker is None or need.marker.evaluate(target):
                waiting.append(need.name)
    del versions["ddlbench"]
    return versions


def _is_installed(wheel: Path) -> bool:
    """Whether this Python has the wheel's distribution, of whatever version."""
    name, *_ = parse_wheel_filename(wheel.name)
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _fits(wheel: Path) -> bool:
    """Whether a wheel is for this Python and this kind of machine."""
    *_, tags = parse_wheel_filename(wheel.name)
    return not tags.isdisjoint(sys_tags())


def _declare(site: Path, plugin: str) -> None:
    """Metadata by which a plug-in of this checkout is known, as if it were installed."""
    import tomllib  # noqa: PLC0415 - of this function alone

    text = (ROOT / "plugins" / plugin / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    folder = site / f"{project['name'].replace('-', '_')}-0.dist-info"
    folder.mkdir(exist_ok=True)
    lines = [f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n"]
    (folder / "METADATA").write_text("".join(lines), encoding="utf-8")
    groups = project.get("entry-points", {})
    (folder / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items())
            for group, named in groups.items()
        ),
        encoding="utf-8",
    )


def _program(path: Path) -> None:
    """The command ``ddlbench``, which is not installed there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable}\nfrom ddlbench.cli import main\nmain()\n", encoding="utf-8"
    )
    path.chmod(0o755)


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


def _files_of_test(clone: Path) -> Iterator[Path]:
    for path in clone.rglob("*"):
        inside = path.relative_to(clone).as_posix()
        is_wanted = inside.startswith(_SAMPLES_KEPT) or f"/{_SAMPLES_KEPT[2]}/" in inside
        if path.is_file() and is_wanted and ".git/" not in inside:
            yield path
