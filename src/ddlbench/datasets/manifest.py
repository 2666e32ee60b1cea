"""``manifest.json`` of a dataset: what was made, and which files must be there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Form
from ddlbench.common.text import read_object
from ddlbench.datasets.files import DataError, Records, check_record, in_parallel
from ddlbench.datasets.synthetic import CONTENT_VERSION
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.paths import data_path

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1


def request_facts(request: DataRequest) -> dict[str, Any]:
    """Fields of a manifest that ``request`` decides.

    The user's own data is always copied whole, so its scale and seed do not matter.
    """
    made = request.is_synthetic
    return {
        "dataset": request.dataset,
        "format": request.format,
        "scale": request.scale if made else 1.0,
        "seed": request.seed if made else 0,
        "source": request.source if made else str(source_folder(request)),
        "content_version": CONTENT_VERSION if made else 0,
    }


def source_folder(request: DataRequest) -> Path:
    """Absolute path of the user's own data.

    Raises:
        DataError: it has a variable that is not set here.
    """
    try:
        return data_path(request.source, f"real_data.{request.dataset}")
    except ConfigError as error:
        raise DataError(str(error)) from error


@dataclass(frozen=True)
class Manifest(Form):
    """Description of a folder of data.

    Args:
        schema_version: of this file.
        dataset, format, scale, seed, source: of the request; scale and seed of copied data are
            1 and 0, since all of it is copied.
        content_version: of the generator; 0 for the user's own data.
        source_digest: of the user's own data when it was copied; empty for synthetic data.
        images: images of each split; empty for the user's own data.
        total_bytes: sum over all files, the manifest itself excluded.
        files: path relative to the folder -> record; JPEG files have one record a class folder.
        created: when, ISO 8601 with time zone.
        generation_s: how long it took, in seconds.
    """

    schema_version: int
    dataset: str
    format: str
    scale: float
    seed: int
    source: str
    content_version: int
    source_digest: str
    images: dict[str, int]
    total_bytes: int
    files: Records
    created: str
    generation_s: float

    @property
    def digest(self) -> str:
        """64 hex digits that identify the contents, whenever and wherever they were made."""
        facts = asdict(self)
        for circumstance in ("created", "generation_s"):
            del facts[circumstance]
        return hashlib.blake2b(
            json.dumps(facts, sort_keys=True).encode(), digest_size=32
        ).hexdigest()

    @classmethod
    def of(
        cls,
        request: DataRequest,
        files: Records,
        *,
        images: dict[str, int],
        generation_s: float,
        source_digest: str = "",
    ) -> Manifest:
        """Manifest of ``files``, written just now for ``request``."""
        return cls(
            schema_version=SCHEMA_VERSION,
            **request_facts(request),
            source_digest=source_digest,
            images=images,
            total_bytes=sum(record["size_bytes"] for record in files.values()),
            files=files,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            generation_s=generation_s,
        )

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1) + "\n"
        (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of ``folder``.

        Raises:
            DataError: there is none, or it is not one of this version.
        """
        path = folder / MANIFEST_NAME
        try:
            manifest = cls.from_dict(read_object(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); stage the data") from error
        except ValueError as error:
            raise DataError(f"{path} is not a dataset manifest; stage the data again") from error
        if manifest.schema_version != SCHEMA_VERSION:
            raise DataError(
                f"{path} has schema version {manifest.schema_version}, not {SCHEMA_VERSION}; "
                "stage the data again"
            )
        return manifest

    def mismatch(self, request: DataRequest) -> str | None:
        """How this differs from the data of ``request``; None if it does not."""
        for name, wanted in request_facts(request).items():
            if getattr(self, name) != wanted:
                return f"it was made for {name} {getattr(self, name)!r}, not {wanted!r}"
        return None

    def damage(self, folder: Path, *, workers: int) -> str | None:
        """What is missing or changed in ``folder``, else None; reads all its bytes."""
        try:
            jobs = [
                partial(check_record, folder / path, record) for path, record in self.files.items()
            ]
            return next(filter(None, in_parallel(jobs, workers)), None)
        except (AttributeError, TypeError, KeyError, ValueError):
            return f"{folder / MANIFEST_NAME} has no proper list of files"
