"""HTML pages of one look, each a file without links to others."""

from __future__ import annotations

import base64
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

_HEAD = struct.Struct(">8s8xII")  # signature, length and name of IHDR, width and height
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXELS_EACH = 0.6  # of the page for one of a figure: 180 mm are 850


class Png(NamedTuple):
    """A picture as a data URI, and its size in pixels of the page."""

    data: str
    width: int
    height: int


def read_png(path: Path) -> Png | None:
    """The picture of a file; None where there is none, or it is no whole PNG."""
    try:
        content = path.read_bytes()
        signature, width, height = _HEAD.unpack_from(content)
    except (OSError, struct.error):
        return None
    if signature != _SIGNATURE:
        return None
    data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return Png(data, round(width * _PIXELS_EACH), round(height * _PIXELS_EACH))


def html_page(template: str, **values: Any) -> str:
    """A template of this folder, filled in; text is escaped.

    Raises:
        UndefinedError: the template asks for a value that is not among ``values``.
    """
    environment = Environment(
        loader=PackageLoader("ddlbench.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    return environment.get_template(template).render(**values)


def _code(text: str) -> Markup:
    """Escaped text whose `commands` are set as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
