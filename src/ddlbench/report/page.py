"""HTML pages of one look, each a file without links to others."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape


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
