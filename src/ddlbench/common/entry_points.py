"""Registries of built-in parts and of those that other packages add by entry points.

Each kind of part has a group of entry points (``ddlbench.datasets``, ...). An entry point with a
built-in name is left out with a warning.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from ddlbench.common.errors import ConfigError, file_fault, shown
from ddlbench.common.schema import nearest

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_LONGEST_LINE = 120
_DECLARED = ""  # the target of an entry that a configuration declares


def kind_of(group: str) -> str:
    """The noun of a group: ``ddlbench.strategies`` -> ``strategy``."""
    return group.removeprefix("ddlbench.").removesuffix("s").replace("strategie", "strategy")


@cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of ``group``. Finding them reads files of every installed package."""
    return tuple(entry_points(group=group))


@cache
def third_party(group: str, built_in: frozenset[str]) -> dict[str, str]:
    """Names that installed packages add to ``group``, and the ``module:attribute`` of each.

    A name that is built in, or that an earlier package has, is left out with a warning.
    """
    targets: dict[str, str] = {}
    for entry in installed(group):
        package = entry.dist.name if entry.dist else "a package"
        if entry.name in built_in:
            owner = "is built in"
        elif targets.setdefault(entry.name, entry.value) != entry.value:
            owner = f"is {targets[entry.name]} already"
        else:
            continue
        _LOG.warning(
            "%s: its %s %r (%s) is left out, as that name %s; rename its entry point",
            package, kind_of(group), entry.name, entry.value, owner,
        )  # fmt: skip
    return targets


def described(group: str, name: str) -> str:
    """How a sentence names a part: ``figure 'mine' of package mypackage``."""
    package = _package_of(group, name)
    return f"{kind_of(group)} {shown(name)}" + (f" of package {package}" if package else "")


def _package_of(group: str, name: str) -> str:
    """The package that adds a part; empty if it is built in."""
    packages = (e.dist.name for e in installed(group) if e.name == name and e.dist)
    return next(packages, "")


def fault_text(error: BaseException) -> str:
    """What a part's code raised, and its last line below ours: ``KeyError: 'k' (p.py, line 3)``."""
    import click  # noqa: PLC0415 - for a fault only

    frames = traceback.extract_tb(error.__traceback__)
    callers = (_OURS, contextlib.__file__, str(Path(click.__file__).parent))
    outside = [f for f in frames if not f.filename.startswith(callers)]
    first = outside[0].filename if outside else ""
    place = [f for f in outside if f.filename == first] or frames
    where = f" ({Path(place[-1].filename).name}, line {place[-1].lineno})" if place else ""
    return f"{type(error).__name__}: {_first_line(error)}{where}"


@contextlib.contextmanager
def within(group: str, name: str) -> Iterator[None]:
    """Call the code of a part; what it raises by mistake becomes a sentence that names the part.

    Raises:
        ConfigError: the part raised it, or has a fault.
        OSError: a built-in part cannot write or read a file.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # whatever a package's code does
        if file_fault(error) and not _package_of(group, name):
            raise
        raise ConfigError(
            f"{described(group, name)} has a fault in its code: {fault_text(error)}"
        ) from error


def why_no_target(target: str) -> str | None:
    """Why ``module:attribute`` does not exist, without importing the module, which may need torch.

    None if it does, or if only an import could tell.
    """
    module, colon, attribute = target.partition(":")
    if not (colon and attribute.isidentifier()):
        return f"{shown(target)} is no package.module:attribute"
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            return None
        spec = None
    except Exception:  # the package above it needs what is not here
        return None
    if spec is None:
        return f"there is no module {module}"
    try:
        tree = ast.parse(Path(spec.origin or "").read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    words = {word for node in ast.walk(tree) for word in _bound(node)}
    return None if words & {attribute, "*", "__getattr__"} else f"{module} has no {attribute}"


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a statement or a target gives to something."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


_OURS = str(Path(__file__).resolve().parents[1])
_MISSING = object()


def load_target(name: str, target: str) -> Any:
    """Import ``module:attribute``.

    Raises:
        ConfigError: it cannot be imported; the message names ``name`` and ``target``.
    """
    module_name, _, attribute = target.partition(":")
    whose = "" if name == target else f" ({target[:_LONGEST_LINE]})"
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        instead = "write package.module:attribute"
        if "?" in attribute:
            instead += (
                "; only those of libraries take arguments, so write a function that gives them"
            )
        raise ConfigError(f"cannot load {shown(name)}{whose}: {instead}")
    try:
        module = importlib.import_module(module_name)
        part = getattr(module, attribute, _MISSING)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load {shown(name)}{whose}: {_first_line(error)}") from error
    except SystemExit as error:
        raise ConfigError(
            f"cannot load {shown(name)}{whose}: its module ends Python on import, as a script "
            'does; put what only the script does below `if __name__ == "__main__":`'
        ) from error
    except Exception as error:  # whatever a module does when it is imported
        kind = type(error).__name__
        raise ConfigError(
            f"cannot load {shown(name)}{whose}: its module fails on import, "
            f"{kind}: {_first_line(error)}"
        ) from error
    if part is _MISSING:
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"cannot load {shown(name)}{whose}: {module_name} has no {attribute!r}{hint}"
        )
    return part


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or ["without a message"]
    return lines[0] if len(lines[0]) <= _LONGEST_LINE else f"{lines[0][:_LONGEST_LINE]}..."


class Registry(Mapping[str, T], Generic[T]):
    """Entries of one kind by name: built-in ones first, then of other packages, then declared ones.

    The entry of another package is imported at its first use, and one that a configuration declares
    is made then; its name is known before.

    Args:
        group: of the entry points.
        built_in: the entries of this package, in their order.
        adapt: makes the entry of an entry point from its name and ``module:attribute``.
        no_target: what to do instead, where a configuration gives a ``module:attribute`` as name.
    """

    def __init__(
        self,
        group: str,
        built_in: dict[str, T],
        adapt: Callable[[str, str], T],
        no_target: str = "",
    ) -> None:
        self.group, self.built_in, self._adapt = group, built_in, adapt
        self._no_target = no_target
        self._built_in_names = frozenset(built_in)
        self._loaded: dict[tuple[str, str], T] = {}
        self._declared: dict[str, Callable[[], T]] = {}

    @property
    def third_party(self) -> dict[str, str]:
        """Names that other packages add, and the ``module:attribute`` of each."""
        return third_party(self.group, self._built_in_names)

    def declare(self, name: str, make: Callable[[], T]) -> None:
        """Add an entry of a configuration, in place of an earlier one of that name.

        Raises:
            ConfigError: the name is built in, or another package's.
        """
        if name in self.built_in or name in self.third_party:
            owner = "built in" if name in self.built_in else self.third_party[name]
            raise ConfigError(f"{shown(name)} is {owner}; choose another name")
        self._declared[name] = make
        self._loaded.pop((name, _DECLARED), None)

    @property
    def declared(self) -> frozenset[str]:
        """Names that configurations declare."""
        return frozenset(self._declared)

    def forget_declared(self) -> None:
        for name in tuple(self._declared):
            del self._declared[name]
            self._loaded.pop((name, _DECLARED), None)

    def __getitem__(self, name: str) -> T:
        """The entry of a name.

        Raises:
            ConfigError: there is no such name, or its entry cannot be imported.
        """
        if name in self.built_in:
            return self.built_in[name]
        self.check(name)
        if name in self._declared:
            if (name, _DECLARED) not in self._loaded:
                self._loaded[name, _DECLARED] = self._declared[name]()
            return self._loaded[name, _DECLARED]
        key = (name, self.third_party[name])
        if key not in self._loaded:
            self._loaded[key] = self._adapt(*key)
        return self._loaded[key]

    def check(self, name: object, where: str = "") -> None:
        """Raise ConfigError, with the likely spelling and ``where``, unless the name is known."""
        if name not in self:
            place = where and f"{where}: "
            is_target = bool(self._no_target) and ":" in str(name)
            remark = self._no_target if is_target else nearest(name, self)
            raise ConfigError(f"{place}unknown {kind_of(self.group)} {shown(name)}; {remark}")

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.third_party or name in self._declared

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.third_party
        yield from self._declared

    def __len__(self) -> int:
        return len(self.built_in) + len(self.third_party) + len(self._declared)
