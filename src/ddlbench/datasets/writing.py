"""Writes a synthetic dataset into an empty folder, manifest last."""

from __future__ import annotations

import time
from pathlib import Path

from ddlbench.datasets.files import available_cpus
from ddlbench.datasets.formats import SPLITS, format_of
from ddlbench.datasets.manifest import Manifest
from ddlbench.datasets.synthetic import Content
from ddlbench.experiment.data_size import DataRequest

__all__ = ["write_dataset"]


def write_dataset(
    request: DataRequest,
    folder: Path,
    *,
    workers: int | None = None,
    keep_fds: tuple[int, ...] = (),
) -> Manifest:
    """Write the data of ``request`` into ``folder``.

    Args:
        request: a synthetic one.
        folder: new or empty; :func:`~ddlbench.datasets.staging.stage` gives it its final name
            when this has returned.
        workers: threads or processes; None for as many as there are CPUs. The files are the
            same, byte for byte, whatever it is.
        keep_fds: descriptors that helper processes hold open too.

    Returns:
        The manifest, also written as ``manifest.json``.

    Raises:
        OSError: a file could not be written.

    """
    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    content = Content(request.spec, request.seed)
    images = {split: request.num_images(split) for split in SPLITS}
    records = format_of(request).write(
        content, folder, images, workers or available_cpus(), keep_fds
    )
    manifest = Manifest.of(
        request, records, images=images, generation_s=time.perf_counter() - begin
    )
    manifest.write(folder)
    return manifest
