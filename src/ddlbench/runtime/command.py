"""How Python is started on a node: after the site's set-up commands, in its container.

::

    plain              python -m module ...
    setup commands     bash -c 'module load CUDA/12.4 && exec "$@"' ddlbench python -m module ...
    container          ... apptainer exec --nv image.sif python3 -m module ...
"""

from __future__ import annotations

import sys

from ddlbench.experiment.paths import expanded
from ddlbench.experiment.site import Site

__all__ = ["python_command"]


def python_command(site: Site, *arguments: str) -> list[str]:
    """The command that runs Python with ``arguments`` as the site wants it.

    Raises:
        ConfigError: the container's image is no path on this node.
    """
    command = [sys.executable, *arguments]
    if site.container is not None:
        image = expanded(site.container["image"], "container.image")
        command = [
            *(site.container["program"], "exec", *site.container["arguments"]),
            *(str(image), site.container["python"], *arguments),
        ]
    if site.setup:
        script = " && ".join([*site.setup, 'exec "$@"'])
        command = ["bash", "-c", script, "ddlbench", *command]
    return command
