"""The gallery: each published figure with ours beside it, its claims, and how to make it.

One HTML file that needs no network, and the same as Markdown::

    config/papers/*/*.yaml   results/<site>/<experiment>/figures   claims.yaml
            |                          |                               |
            '------------------- gallery.html, gallery.md -------------'
"""

from __future__ import annotations

import base64
import os
import shlex
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.experiment.document import write_text
from ddlbench.experiment.paths import RESULTS
from ddlbench.report.page import html_page

_PIXELS_EACH = 0.6  # of the page for one of a figure: 180 mm are 850


@dataclass(frozen=True)
class Shown:
    """One of our pictures.

    Args:
        file: its path.
        caption: where it comes from.
    """

    file: Path
    caption: str

    @property
    def data(self) -> str:
        """The picture as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.file.read_bytes()).decode()}"

    @property
    def width(self) -> int:
        """Pixels of the page."""
        (pixels,) = struct.unpack(">I", self.file.read_bytes()[16:20])
        return round(pixels * _PIXELS_EACH)


@dataclass(frozen=True)
class Exhibit:
    """One published figure.

    Args:
        figure, title, source, question, original, read: of the paper's file.
        command: makes it.
        pictures: ours, as far as they are there.
        claims: verdicts on its claims: id, claim, verdict, numbers.
    """

    figure: str
    title: str
    source: str
    question: str
    original: str
    read: str
    command: str
    pictures: tuple[Shown, ...]
    claims: tuple[tuple[str, str, str, str], ...]


def pictures_of(
    experiment: str, draws: Sequence[str], sites: Sequence[str], results: Path = RESULTS
) -> tuple[Shown, ...]:
    """The figures of an experiment, at any scale, that are there on the sites.

    Args:
        experiment: its name at full scale.
        draws: names of figures.
        sites: their names.
        results: the folder that holds them.
    """
    found = []
    for site in sites:
        for folder in sorted((results / site).glob(f"{experiment}*")):
            if folder.name not in (experiment, f"{experiment}-laptop"):
                continue
            for name in draws:
                for path in (folder / "figures" / f"{name}.png",
                             folder / "figures" / "predictions" / f"{name}.png"):  # fmt: skip
                    if path.is_file():
                        found.append(Shown(path, f"{folder.name} on {site}"))
    return tuple(found)


def drawings_of(command: str) -> tuple[Shown, ...]:
    """What a command without cells has drawn into its folder ``--out``, as far as it is there."""
    words = shlex.split(command)
    if "--out" not in words[:-1]:
        return ()
    folder = Path(words[words.index("--out") + 1])
    return tuple(Shown(path, path.stem) for path in sorted(folder.glob("*.png")))


def write_gallery(exhibits: Sequence[Exhibit], out: Path, told: Mapping[str, Any]) -> list[Path]:
    """Write gallery.html and gallery.md into a folder.

    Args:
        exhibits: in their order.
        out: the folder.
        told: ``days``, ``version`` and ``here``, for the head of the page.
    """
    shown = sum(bool(one.pictures) for one in exhibits)
    page = html_page("gallery.html", exhibits=exhibits, shown=shown, told=told)
    html, markdown = out / "gallery.html", out / "gallery.md"
    write_text(html, page)
    write_text(markdown, _markdown(exhibits, out))
    return [html, markdown]


def _markdown(exhibits: Sequence[Exhibit], out: Path) -> str:
    lines = ["# Published figures beside ours", ""]
    for one in exhibits:
        lines += [f"## {one.figure}: {one.title}", "", f"{one.question} ({one.source})", ""]
        lines += [f"Original: {one.original}.", "", one.read, ""]
        lines += ["    " + one.command, ""]
        for picture in one.pictures:
            path = _relative(picture.file, out)
            lines += [f"![{picture.caption}]({path})", ""]
        if one.claims:
            lines += ["| claim | verdict | |", "|---|---|---|"]
            lines += [
                f"| {claim} | {verdict} | {numbers} |" for _, claim, verdict, numbers in one.claims
            ]
            lines += [""]
    return "\n".join(lines)


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
