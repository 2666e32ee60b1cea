"""Platform files: the data sheet of a cluster, and few constants fitted to measurements.

``config/platforms/<name>.yaml`` is of one of two kinds: levels of a network, for ParaDL's oracle of
CNNs, or accelerators and their links, for the oracle of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml

from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.project import project_root
from ddlbench.common.schema import check_against, fill_defaults, nearest, read_yaml

_HEADER = "# Written by `ddlbench oracle calibrate`, or by hand: see docs/oracle.md.\n"


@dataclass(frozen=True)
class PlatformFile:
    """The values of a platform file; a schema in ``config/schemas`` explains each key.

    Class attributes:
        schema: its name.
        mark, other_mark: keys that only files of this kind, and of the other, have.
        fitted: constants that a file must have.
    """

    schema: ClassVar[str]
    mark: ClassVar[str]
    other_mark: ClassVar[str]
    fitted: ClassVar[Sequence[str]]

    values: Mapping[str, Any]

    @property
    def description(self) -> str:
        return str(self.values["description"])

    @property
    def devices_per_node(self) -> int:
        return int(self.values["devices_per_node"])

    @property
    def device(self) -> Mapping[str, float]:
        """Memory in bytes, operations and bytes of memory a second of one device."""
        device: Mapping[str, float] = self.values["device"]
        return device

    def constant(self, name: str) -> float:
        return float(self.values["fitted"][name]["value"])

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        """The same platform with other fitted constants."""
        fitted = {name: dict(entry) for name, entry in self.values["fitted"].items()}
        for name, value in constants.items():
            fitted[name]["value"] = float(value)
        return replace(self, values={**self.values, "fitted": fitted})

    @classmethod
    def load(cls, name: str) -> Self:
        """Read ``config/platforms/<name>.yaml``, or the file ``name`` if it is a path.

        Raises:
            ConfigError: there is no such platform, it is of the other kind, or a key is wrong.
        """
        folder = project_root() / "config" / "platforms"
        path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
        if not path.is_file():
            remark = nearest(name, cls._known(folder))
            raise ConfigError(f"platform {name!r} has no file {path}; {remark}")
        values = read_yaml(path)
        if cls.other_mark in values and cls.mark not in values:
            raise ConfigError(
                f"{path}: describes a platform of the other oracle; "
                f"write one of {', '.join(cls._known(folder))}"
            )
        check_against(cls.schema, values, where=str(path))
        values = fill_defaults(cls.schema, values)
        for constant in cls.fitted:
            if constant not in values["fitted"]:
                raise ConfigError(f"{path}: fitted: {constant!r} is missing; add value and prior")
        for constant, entry in values["fitted"].items():
            if entry["value"] > entry.get("at_most", float("inf")):
                raise ConfigError(
                    f"{path}: fitted: {constant} is {entry['value']:g}; "
                    f"write at most {entry['at_most']:g}"
                )
        return cls(values)

    @classmethod
    def _known(cls, folder: Path) -> list[str]:
        """Names of the platforms of this kind."""
        texts = {file: file.read_text("utf-8", "replace") for file in sorted(folder.glob("*.yaml"))}
        return [file.stem for file, text in texts.items() if f"\n{cls.mark}:" in text]

    def write(self, path: Path) -> None:
        """Write a platform file atomically.

        Raises:
            ConfigError: the path cannot be written.
        """
        text = yaml.safe_dump(dict(self.values), sort_keys=False, allow_unicode=True, width=100)
        try:
            write_text(path, _HEADER + text)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
