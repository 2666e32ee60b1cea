"""Options that commands of the oracle share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from ddlbench.predict.paradl.platform import load_platform

__all__ = ["JSON", "PLATFORM", "PLATFORM_NAME", "with_platform"]

PLATFORM = "config/platforms/abci.yaml"
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
PLATFORM_NAME = click.option(
    "--platform",
    "platform_name",
    default=PLATFORM,
    show_default=True,
    help="A platform file, or its name in config/platforms.",
)


def with_platform(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--platform`` and hand the platform to the command."""

    @PLATFORM_NAME
    @wraps(command)
    def wrapped(platform_name: str, **options: Any) -> None:
        command(platform=load_platform(platform_name), **options)

    return wrapped
