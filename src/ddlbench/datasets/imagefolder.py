"""ImageNet's usual layout: ``train/<class>/<image>.jpg`` and ``val/...``.

A class folder is one job, with one writer and one checksum. JPEG encoding holds Python's lock, so
the writers are processes::

    write -> a thread per process -- its class folders --> serve: draws, encodes, writes them
                                  <-- their records ------

The processes are started as programs of their own: a parent with threads or a GPU must not fork,
and :mod:`multiprocessing`'s spawn would run the caller's script again. When this process dies, they
stop after the folder at hand.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.datasets.files import DataError, Record, Records, folder_crc
from ddlbench.datasets.synthetic import Content, Recipe
from ddlbench.experiment.dataset_spec import DatasetSpec

JPEG_QUALITY = 75  # Pillow's default, as in DDLBench


def class_folder(split: str, label: int) -> str:
    """Path of a class's folder under the root; the order as text is the order by number."""
    return f"{split}/{label:04d}"


class ClassFolders:
    """Writes class folders of a dataset, in any order."""

    def __init__(self, content: Content, root: Path, images: dict[str, int]) -> None:
        self._content = content
        self._root = root
        self._images = images
        self._recipes: dict[str, Recipe] = {}

    def write(self, split: str, label: int) -> Record:
        """Writes all images of ``label`` in ``split``; makes the folder even if there are none."""
        if split not in self._recipes:
            self._recipes[split] = self._content.recipe(split, 0, self._images[split])
        recipe = self._recipes[split]
        ids = np.flatnonzero(recipe.labels == label)
        folder = self._root / class_folder(split, label)
        folder.mkdir(parents=True)
        size = crc = 0
        for index in ids.tolist():
            image = self._content.draw(recipe[index : index + 1])[0]
            content = _encode(image)
            name = f"{index:08d}.jpg"
            (folder / name).write_bytes(content)
            size += len(content)
            crc = folder_crc(crc, name, content)
        return {"files": len(ids), "size_bytes": size, "crc32": crc}


def _encode(image: np.ndarray) -> bytes:
    from PIL import Image  # noqa: PLC0415 - a login node may list folders without it

    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def write(
    content: Content, root: Path, images: dict[str, int], workers: int, keep_fds: tuple[int, ...]
) -> Records:
    """Writes all splits under ``root``; see :mod:`ddlbench.datasets.formats`."""
    jobs = [(split, label) for split in images for label in range(content.spec.num_classes)]
    if workers <= 1:
        folders = ClassFolders(content, root, images)
        records = [folders.write(split, label) for split, label in jobs]
    else:
        records = write_class_folders(
            content, root, images, jobs, workers=workers, keep_fds=keep_fds
        )
    return {class_folder(*job): record for job, record in zip(jobs, records, strict=True)}


_SERVE = "from ddlbench.datasets.imagefolder import serve; serve()"
Job = tuple[str, int]  # split, label


def write_class_folders(
    content: Content,
    root: Path,
    images: dict[str, int],
    jobs: list[Job],
    *,
    workers: int,
    keep_fds: tuple[int, ...],
) -> list[Record]:
    """Writes one class folder for each job by ``workers`` processes, and returns their records.

    The processes hold ``keep_fds`` open too; with that of the staging lock, it stays locked until
    the last of them has ended.

    Raises:
        OSError: a folder could not be written.
        DataError: a process ended on its own.
    """
    setup = {"spec": asdict(content.spec), "seed": content.seed, "root": str(root)}
    setup |= {"images": images, "parent": os.getpid()}
    shares = [jobs[first::workers] for first in range(min(workers, len(jobs)))]
    children: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(workers) as pool:
        try:
            written = pool.map(
                lambda share: _written({**setup, "jobs": share}, keep_fds, children), shares
            )
            records = {
                job: record
                for share, of_share in zip(shares, written, strict=True)
                for job, record in zip(share, of_share, strict=True)
            }
        except BaseException:  # an interrupt, too: nobody wants the data
            for child in children:
                child.kill()
            raise
    return [records[job] for job in jobs]


def _written(
    request: dict[str, Any], keep_fds: tuple[int, ...], children: list[subprocess.Popen[str]]
) -> list[Record]:
    """The records of the class folders that one process writes, which is one of ``children``."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        pass_fds=keep_fds,
    ) as child:
        children.append(child)
        printed, _ = child.communicate(json.dumps(request))
    if child.returncode:
        raise DataError(
            f"a process that writes JPEG files ended early (exit status {child.returncode}); "
            "its last words are above"
        )
    answer = json.loads(printed)
    if "errno" in answer:
        raise OSError(answer["errno"], answer["error"], answer["path"])
    records: list[Record] = answer["records"]
    return records


def serve() -> None:
    """Runs a helper process: reads a request on standard input, prints the records of its jobs."""
    request = json.load(sys.stdin)
    content = Content(DatasetSpec(**request["spec"]), request["seed"])
    folders = ClassFolders(content, Path(request["root"]), request["images"])
    records = []
    for split, label in request["jobs"]:
        if os.getppid() != request["parent"]:  # it has died, and nobody wants the data
            return
        try:
            records.append(folders.write(split, label))
        except OSError as error:
            path = None if error.filename is None else str(error.filename)
            print(json.dumps({"errno": error.errno, "error": error.strerror, "path": path}))
            return
    print(json.dumps({"records": records}))
