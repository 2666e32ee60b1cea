"""What lies in a folder in which data was not found, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

PACKED = (
    ".tar",
    ".tar.gz",
    ".tgz",
    ".tar.bz2",
    ".tar.xz",
    ".zip",
    ".gz",
    ".bz2",
    ".xz",
    ".7z",
    ".rar",
    ".zst",
)
_MOST_NAMES = 5
_DEEPEST = 4
_MOST_FOLDERS = 500


def is_hidden(name: str) -> bool:
    """Whether a name is that of a hidden file or folder, or of a tool's such as ``@eaDir``."""
    return name.startswith((".", "@"))


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted, without hidden ones; none where it cannot be read."""
    try:
        return sorted(path.name for path in folder.iterdir() if not is_hidden(path.name))
    except OSError:
        return []


def lies_there(folder: Path) -> str:
    """``it holds a, b and 3 more`` of a folder, or of the nearest one above that is there."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return f"{folder} holds {listed(names_in(folder)) or 'nothing'}"


def listed(names: list[str]) -> str:
    """A few names, and how many more there are; empty of none."""
    shown, more = names[:_MOST_NAMES], len(names) - _MOST_NAMES
    if more > 0:
        return f"{', '.join(shown)} and {more:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def unpack_hint(folder: Path) -> str | None:
    """What to unpack in a folder; None if nothing there is packed."""
    packed = [name for name in names_in(folder) if name.lower().endswith(PACKED)]
    if not packed:
        return None
    name = packed[0]
    lower = name.lower()
    if lower.endswith((".gz", ".bz2", ".xz")) and ".tar" not in lower:
        tool = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz"}[Path(lower).suffix]
        how = f"{tool} {name}" if len(packed) == 1 else f"{tool} *{Path(lower).suffix}"
    elif lower.endswith(".zip"):
        how = f"unzip {name}"
    elif ".tar" in lower or lower.endswith(".tgz"):
        how = f"tar xf {name}"
    else:
        how = f"unpack {name}"
    return f"it is packed: in {folder}, run {how}"


def deeper(folder: Path, is_wanted: Callable[[Path], bool]) -> Path | None:
    """The nearest folder below that is the wanted one; None if there is none near."""
    level, looked_at = [folder], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for parent in level:
            for name in names_in(parent):
                child = parent / name
                looked_at += 1
                if looked_at > _MOST_FOLDERS:
                    return None
                if not child.is_dir():
                    continue
                if is_wanted(child):
                    return child
                below.append(child)
        level = below
    return None


def endings(names: list[str]) -> Counter[str]:
    """How many names have each ending; ``hidden`` and ``no ending`` are two of them."""
    return Counter(map(ending, names))


def ending(name: str) -> str:
    """The ending of a name in small letters; ``hidden`` or ``no ending`` where that tells more."""
    return "hidden" if is_hidden(name) else Path(name).suffix.lower() or "no ending"
