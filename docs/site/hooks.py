"""Pages and files outside ``docs/`` that pages link to, as parts of the web site.

MkDocs knows the files below ``docs/`` only. A link out of that folder, as ``../config/README.md``,
is right on a forge and in an editor; here its target joins the site::

    docs/networks.md      -> networks.md
    config/README.md      -> repository/config/README.md
    src/ddlbench/cli.py   -> repository/src/ddlbench/cli.py.txt      (a browser shows text)

A link to a folder leads to its README, or to a page that lists its files. A link whose target does
not exist stays as it is, and ``mkdocs build --strict`` names it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FIRST = "README.md"
OUTSIDE = "repository"
SHOWN = {".md", ".png", ".svg"}
_LINK = re.compile(r"(!?\[(?:[^\]\\]|\\.)*\]\()([^)\s]+)(\))")
_CODE = re.compile(r"^```.*?^```|(`+)[^`]+\1", re.DOTALL | re.MULTILINE)


def uri_of(path: str) -> str:
    """Where a file of the repository lies in the site; ``path`` is relative to the root."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{OUTSIDE}/{path}" if Path(path).suffix in SHOWN else f"{OUTSIDE}/{path}.txt"


def path_of(uri: str) -> str:
    """The file of the repository of a page of the site."""
    if uri.startswith(f"{OUTSIDE}/"):
        return uri.removeprefix(f"{OUTSIDE}/")
    return f"docs/{uri}"


def target_of(page: str, link: str) -> str | None:
    """The file or folder that a link of a page leads to, relative to the root."""
    if re.match(r"[a-z]+:|#|/", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))
    if path.startswith("..") or not (ROOT / path).exists():
        return None
    return path


def readable(target: str) -> str:
    """Of a folder its README, or a page that lists its files."""
    if (ROOT / target).is_dir():
        return posixpath.join(target, "README.md") if (ROOT / target / FIRST).exists() else ""
    return target


def links(text: str) -> list[str]:
    """Targets of a page's links, those in blocks of code left out."""
    targets: list[str] = []
    replace_links(text, lambda link: targets.append(link) or link)
    return targets


def replace_links(text: str, new: Callable[[str], str]) -> str:
    """The page with each link replaced by ``new(link)``; code stays as it is."""
    code = [match.span() for match in _CODE.finditer(text)]

    def replace(match: re.Match[str]) -> str:
        if any(start <= match.start(2) < end for start, end in code):
            return match[0]
        return match[1] + new(match[2]) + match[3]

    return _LINK.sub(replace, text)


def listing(folder: str) -> str:
    """A page that lists the files of a folder."""
    names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
    rows = "\n".join(f"* [{name}]({name})" for name in names if not name.startswith("."))
    return f"# {folder}\n\n{rows}\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside ``docs/``, and what these pages link to."""
    listed = dict.fromkeys(file.src_uri for file in files.documentation_pages())
    texts = {path_of(uri): (ROOT / path_of(uri)).read_text("utf-8") for uri in listed}
    waiting = [*texts.items()]
    while waiting:
        page, text = waiting.pop()
        for link in links(text):
            target = target_of(page, link)
            if target is None:
                continue
            made = readable(target)
            if not made:
                made = posixpath.join(target, "README.md")
                texts[made] = listing(target)
            if files.get_file_from_path(uri_of(made)) is not None:
                continue
            if made in texts:
                file = File.generated(config, uri_of(made), content=texts[made])
                waiting.append((made, texts[made]))
            else:
                file = File.generated(config, uri_of(made), abs_src_path=str(ROOT / made))
                if made.endswith(".md"):
                    texts[made] = (ROOT / made).read_text("utf-8")
                    waiting.append((made, texts[made]))
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site needs them."""
    source = path_of(page.file.src_uri)

    def new(link: str) -> str:
        target = target_of(source, link)
        if target is None:
            return link
        made = readable(target) or posixpath.join(target, "README.md")
        anchor = link.partition("#")[2]
        start = posixpath.dirname(page.file.src_uri)
        path = posixpath.relpath(uri_of(made), start or ".")
        return f"{path}#{anchor}" if anchor else path

    return replace_links(markdown, new)
