r"""NVIDIA's link tests: where they are on a node, how one is built, and how their text is read.

They are looked for in this order::

    site: p2p_binary  ->  PATH  ->  folders of the CUDA toolkit  ->  built in site: cuda_samples
          ->  built by `make p2p`  ->  nvcc on site: cuda_samples
    site: nvbandwidth ->  PATH

``python -m ddlbench.interconnect.nvidia_programs`` is `make p2p`: it clones the tag of cuda-samples
that fits the compiler, and builds the test. No toolkit has the test itself: CUDA <= 11.5 ships its
source in ``samples``, later ones ship none, and their ``extras/demo_suite`` has bandwidthTest and
busGrind (CUDA Demo Suite, documents of 11.0 to 13.4). An administrator may have built it there.

What they print may have been captured by somebody::

    bytes  -- decoded -->  text  -- plain_lines -->  lines, as the tool printed them

    [1,0]<stdout>:P2P Connectivity Matrix          P2P Connectivity Matrix
    [1,0]<stdout>:     D\D     0     1             D\D     0     1

Launchers, loggers and mails put something before each line: the rank (``srun --label``), a tag
(``mpirun --tag-output``), a host, the time, a quotation mark. What it is shows before lines that
only the tool prints, and is removed from all lines. Times differ from line to line, and numbers
of lines grow. Anything else that differs tells tasks apart, whose outputs are not to be mixed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ddlbench.common.captured_text import uncoloured_lines
from ddlbench.common.errors import ConfigError, file_fault, shown

State = Literal["there", "absent", "wrong"]
P2P = "p2pBandwidthLatencyTest"
NVBANDWIDTH = "nvbandwidth"
_SAMPLES = "https://github.com/NVIDIA/cuda-samples"
# A toolkit without a tag of its own takes the one before it, as 12.6 does (its CHANGELOG.md).
_TAGS = (
    (11, 0), (11, 1), (11, 2), (11, 3), (11, 4), (11, 5), (11, 6), (11, 8), (12, 0), (12, 1),
    (12, 2), (12, 3), (12, 4), (12, 5), (12, 8), (12, 9), (13, 0),
)  # fmt: skip
_BUILD_TIMEOUT_S, _CLONE_TIMEOUT_S = 300, 600
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "EBROOTCUDA")
_USUAL_TOOLKIT = Path("/usr/local/cuda")
_IN_TOOLKIT = (
    f"extras/demo_suite/{P2P}",
    f"samples/1_Utilities/{P2P}/{P2P}",
    f"samples/bin/*/linux/release/{P2P}",
)
# Source of the test and headers it includes, relative to a checkout, newest layout first.
_LAYOUTS = (
    (f"cpp/5_Domain_Specific/{P2P}", ("cpp/Common", "Common")),
    (f"Samples/5_Domain_Specific/{P2P}", ("Common",)),
    (f"Samples/{P2P}", ("Common",)),
    (f"1_Utilities/{P2P}", ("common/inc",)),
)


def find_p2p(interconnect: Mapping[str, Any]) -> Path | None:
    """A p2pBandwidthLatencyTest that is there already, or None.

    Raises:
        ConfigError: the site names a wrong binary.
    """
    named = _installed(interconnect, "p2p_binary", P2P)
    return named or next((path for path in _usual_places(interconnect) if _runs(path)), None)


def find_or_build_p2p(interconnect: Mapping[str, Any]) -> Path | None:
    """The test's binary; None if there is neither one nor source to build it from.

    Raises:
        ConfigError: the site names a wrong binary or checkout, or nvcc fails.
    """
    binary = find_p2p(interconnect)
    checkout = interconnect.get("cuda_samples")
    return build(_expanded(checkout)) if binary is None and checkout else binary


def find_nvbandwidth(interconnect: Mapping[str, Any]) -> Path | None:
    """The binary of nvbandwidth, or None.

    Raises:
        ConfigError: the site names a wrong binary.
    """
    return _installed(interconnect, NVBANDWIDTH, NVBANDWIDTH)


def how_to_get_p2p() -> str:
    """What a user does to have the test, as the end of a sentence."""
    version = cuda_version()
    tag = tag_for(version, _TAGS) if version else None
    written = _text(tag) if tag else "vX.Y of your CUDA"
    return (
        "run `make p2p` where there are nvcc and internet, in a home that the nodes see; or by "
        f"hand: git clone --depth 1 --branch {written} {_SAMPLES} ~/cuda-samples, and write "
        "interconnect: {cuda_samples: ~/cuda-samples}, which nvcc on a node then builds"
    )


def state_of_p2p(interconnect: Mapping[str, Any]) -> tuple[State, str]:
    """Whether pairs of this node's GPUs can be measured with NVIDIA's test, and where it is.

    Returns:
        ``there`` (or built when it is needed), ``absent``, or ``wrong`` if the site asks for what
        is not there; a sentence for the user.
    """
    checkout = interconnect.get("cuda_samples")
    try:
        if (binary := find_p2p(interconnect)) is not None:
            return "there", str(binary)
        if checkout:
            source, _ = _source(_expanded(checkout))
            if _nvcc() is None:
                return "wrong", _no_compiler(source)
            return "there", f"nvcc will build it from {source}"
        other = find_nvbandwidth(interconnect)
    except ConfigError as error:
        return "wrong", str(error)
    instead = f"nvbandwidth ({other})" if other else "our own copies"
    return "absent", f"not there, so {instead} will measure pairs of GPUs; {how_to_get_p2p()}"


def _installed(interconnect: Mapping[str, Any], key: str, name: str) -> Path | None:
    """The program that the site names under ``key``, else ``name`` in PATH."""
    if interconnect.get(key):
        binary = _expanded(interconnect[key])
        if not _runs(binary):
            raise ConfigError(
                f"interconnect.{key}: {binary} on {socket.gethostname()} is no program; "
                "give its path on the nodes"
            )
        return binary
    path = shutil.which(name)
    return Path(path) if path else None


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _usual_places(interconnect: Mapping[str, Any]) -> Iterator[Path]:
    named = [Path(os.environ[name]) for name in _TOOLKITS if os.environ.get(name)]
    for toolkit in (*named, _USUAL_TOOLKIT):
        for place in _IN_TOOLKIT:
            yield from sorted(toolkit.glob(place))
    checkout = interconnect.get("cuda_samples")
    if checkout:
        top = _expanded(checkout)
        yield from sorted(top.glob(f"bin/*/linux/release/{P2P}"))  # make, up to 12.5
        for folder, _ in _LAYOUTS:
            yield top / folder / P2P  # make there
            yield top / folder / "build" / P2P  # CMake there, from 12.8 on
            yield top / "build" / folder / P2P  # CMake of all samples
    yield _cache() / P2P


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddlbench"


def build(checkout: Path) -> Path:
    """Compile the test from a checkout into the user's cache, under a digest of its source.

    Raises:
        ConfigError: the checkout lacks the source, or nvcc is missing or fails.
    """
    source, headers = _source(checkout)
    nvcc = _nvcc()
    if nvcc is None:
        raise ConfigError(_no_compiler(source))
    version = run([nvcc, "--version"], _BUILD_TIMEOUT_S).stdout
    digest = hashlib.blake2b(
        source.read_bytes() + str(headers.resolve()).encode() + version.encode(), digest_size=8
    ).hexdigest()
    cache = _cache()
    binary = cache / f"{P2P}-{digest}"
    if binary.is_file():
        return binary
    _make(cache)
    # Several nodes may build at once: the last one wins, and all find a complete binary. Without
    # -arch nvcc includes code that the driver compiles for any GPU.
    beside = cache / f".{binary.name}.{socket.gethostname()}.{os.getpid()}"
    try:
        command = [nvcc, "-O3", "-I", str(headers), str(source), "-o", str(beside)]
        built = run(command, _BUILD_TIMEOUT_S)
        if built.returncode:
            error = _first_error(built.stderr + built.stdout)
            raise ConfigError(f"{nvcc} cannot build {source}: {error}")
        beside.replace(binary)
    except OSError as error:
        raise ConfigError(file_fault(error, binary) or error) from None
    finally:
        beside.unlink(missing_ok=True)
    return binary


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made: {error.strerror}; set XDG_CACHE_HOME to a folder of yours"
        ) from None


def _nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which(str(_USUAL_TOOLKIT / "bin" / "nvcc"))


def _no_compiler(source: Path) -> str:
    return (
        f"{source} cannot be built on {socket.gethostname()}: no nvcc in PATH; load CUDA's "
        "module (site key 'setup') or give interconnect.p2p_binary"
    )


def _source(checkout: Path) -> tuple[Path, Path]:
    """The test's source file, and the folder of its headers."""
    for folder, includes in _LAYOUTS:
        source = checkout / folder / f"{P2P}.cu"
        if not source.is_file():
            continue
        for include in includes:
            if (checkout / include / "helper_cuda.h").is_file():
                return source, checkout / include
        raise ConfigError(
            f"{checkout}: {source.name} is there, but not {' or '.join(includes)}/helper_cuda.h; "
            "set interconnect.cuda_samples to a whole checkout"
        )
    raise ConfigError(
        f"{checkout}: no {P2P}.cu where cuda-samples has it ({_LAYOUTS[1][0]}, ...); "
        "set interconnect.cuda_samples to the top of a checkout"
    )


def cuda_version() -> tuple[int, int] | None:
    """CUDA's version by nvcc; None without one."""
    nvcc = _nvcc()
    if nvcc is None:
        return None
    try:
        printed = run([nvcc, "--version"], _BUILD_TIMEOUT_S).stdout
    except ConfigError:
        return None
    release = re.search(r"release (\d+)\.(\d+)", printed)
    return (int(release[1]), int(release[2])) if release else None


def tag_for(version: tuple[int, int], tags: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The newest tag that is no newer than a version of CUDA, or else the oldest."""
    return max((tag for tag in tags if tag <= version), default=min(tags))


def _text(tag: tuple[int, int]) -> str:
    return f"v{tag[0]}.{tag[1]}"


def fetch(folder: Path) -> Path:
    """Clone the tag of cuda-samples that fits nvcc into a folder, if there is no checkout.

    Raises:
        ConfigError: there is no nvcc, or the repository cannot be reached.
    """
    version = cuda_version()
    if version is None:
        raise ConfigError(
            "no nvcc in PATH or /usr/local/cuda/bin: load CUDA's module, then run `make p2p` again"
        )
    there = _tags_in("\n".join(str(path) for path in folder.glob("cuda-samples-v*")))
    tag = tag_for(version, there or _published_tags())
    checkout = folder / f"cuda-samples-{_text(tag)}"
    if checkout.is_dir():
        return checkout
    _make(folder)
    beside = folder / f".{checkout.name}.{os.getpid()}"
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", _text(tag), _SAMPLES]
    try:
        cloned = run([*command, str(beside)], _CLONE_TIMEOUT_S)
        if cloned.returncode:
            raise ConfigError(
                f"{_SAMPLES}, {_text(tag)}, cannot be cloned: {last_line(cloned.stderr)}; clone "
                f"it where there is internet, and move it to {checkout}"
            )
        beside.rename(checkout)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return checkout


def _published_tags() -> Sequence[tuple[int, int]]:
    """Tags of the repository that are plain versions; out of reach, those that are known here."""
    try:
        listed = run(["git", "ls-remote", "--tags", _SAMPLES], _BUILD_TIMEOUT_S).stdout
    except ConfigError:
        return _TAGS
    return _tags_in(listed) or _TAGS


def _tags_in(lines: str) -> list[tuple[int, int]]:
    """Versions with which lines end: of tags, or of folders named after them."""
    versions = re.findall(r"[/-]v(\d+)\.(\d+)$", lines, re.MULTILINE)
    return [(int(major), int(minor)) for major, minor in versions]


def run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints.

    Raises:
        ConfigError: it cannot be started, or is not done in time.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{command[0]} is not done after {timeout_s:g} s") from None
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from None


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def last_line(text: str, otherwise: str = "no reason given") -> str:
    """The last line of what a program wrote."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else otherwise


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower()]
    return lines[0] if lines else last_line(text)


_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*,?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w*"
_DATE = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d[-/.]\d{2,4}"
    rf"|(?:{_DAY}\s+)?(?:{_MONTH}\s+\d{{1,2}}|\d{{1,2}}[\s-]{_MONTH})(?:[\s,-]+\d{{4}})?)"
)
_TIME = (
    r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:\s?[AP]M\b)?"
    r"(?:\s?Z\b|\s?[+-]\d\d:?\d\d\b|\s(?:UTC|GMT|[CEMP][DES]?[DS]?T)\b)?(?:\s+20\d\d\b)?"
)
_SECONDS = r"\d+\.\d+|(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?m?s|\d{9,}"
# A date, a time, both, or seconds since 1970 or since the start. One group, none within.
_STAMP = re.compile(rf"(?<![\w.])({_DATE}[T_\s]+{_TIME}|{_DATE}|{_TIME}|{_SECONDS})(?![\w.])")
_DIGITS = re.compile(r"\d+")


class _Prefix(NamedTuple):
    """What stands before a known line, split at the times in it."""

    number: int  # of the line
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(part for part in self.parts if part)

    @property
    def names_a_task(self) -> bool:
        """Whether it holds more than times and signs, such as ``> ``."""
        return any(sign.isalnum() for sign in self.text)


def plain_lines(text: str, known: re.Pattern[str], where: str) -> list[str]:
    """The lines of a text without colours, without what stands before each, and without indent.

    Args:
        text: as captured; the n-th line of the result is its n-th line.
        known: lines that only the tool prints, from their first letter on.
        where: name of the text in messages.

    Raises:
        ConfigError: the output of several tasks is in it.
    """
    lines = uncoloured_lines(text)
    prefixes = [
        # Every second piece is a time.
        _Prefix(number, tuple(" ".join(part.split()) for part in _STAMP.split(before)[::2]))
        for number, line in enumerate(lines, start=1)
        if (match := known.search(line))
        for before in [line[: match.start()]]
    ]
    patterns = _patterns(prefixes, where)
    return [_without_prefix(line, patterns) for line in lines]


def _patterns(prefixes: list[_Prefix], where: str) -> list[re.Pattern[str]]:
    """Patterns of the prefixes, longest first."""
    tasks = {prefix.parts: prefix for prefix in reversed(prefixes) if prefix.names_a_task}
    if len(tasks) > 1 and _are_numbered([prefix for prefix in prefixes if prefix.names_a_task]):
        return [_pattern(next(iter(tasks)), numbered=True)]
    if len(tasks) > 1:
        first, second, *others = sorted(tasks.values())
        more = f" (and {len(others)} more)" if others else ""
        raise ConfigError(
            f"{where} line {second.number}: lines that begin with {shown(first.text)} and with "
            f"{shown(second.text)}{more} are mixed; keep the lines of one task"
        )
    shapes = sorted(
        {prefix.parts for prefix in prefixes},
        key=lambda parts: sum(len(part) + 1 for part in parts),
        reverse=True,
    )
    return [_pattern(parts) for parts in shapes]


def _are_numbered(prefixes: list[_Prefix]) -> bool:
    """Whether the prefixes differ in numbers only, which grow from line to line."""
    if len({_DIGITS.sub("0", prefix.text) for prefix in prefixes}) > 1:
        return False
    numbers = [[float(word) for word in _DIGITS.findall(prefix.text)] for prefix in prefixes]
    return all(earlier < later for earlier, later in itertools.pairwise(numbers))


def _pattern(parts: tuple[str, ...], numbered: bool = False) -> re.Pattern[str]:
    pieces = [r"\s*".join(re.escape(word) for word in part.split()) for part in parts]
    if numbered:
        pieces = [_DIGITS.sub(r"\\d+", piece) for piece in pieces]
    return re.compile(r"\s*" + rf"\s*{_STAMP.pattern}\s*".join(pieces))


def _without_prefix(line: str, patterns: list[re.Pattern[str]]) -> str:
    for pattern in patterns:
        if match := pattern.match(line):
            return line[match.end() :].strip()
    return line.strip()


_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
# As C libraries write what is no number; MSVC's old one wrote 1.#INF.
_NO_NUMBER = re.compile(r"[-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?|1\.#\w+)|N/A", re.IGNORECASE)


def printed_number(word: str) -> float | None:
    """The number that a C program printed; None for inf, nan and N/A.

    Raises:
        ValueError: it is none.
    """
    if _NUMBER.fullmatch(word):
        return float(word)
    if _NO_NUMBER.fullmatch(word):
        return None
    raise ValueError(word)


def is_printed_number(word: str) -> bool:
    """Whether :func:`printed_number` reads it."""
    return bool(_NUMBER.fullmatch(word) or _NO_NUMBER.fullmatch(word))


def main() -> None:
    """`make p2p`: clone, build, and leave the test where every site of this user finds it."""
    target = _cache() / P2P
    try:
        built = build(fetch(_cache()))
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        beside.symlink_to(built.name)
        beside.replace(target)
    except (ConfigError, OSError) as error:
        sys.exit(f"ddlbench: {error}")
    print(f"{target} is built; `ddlbench site doctor` says whether the nodes see it")


if __name__ == "__main__":
    main()
