"""The ``ddlbench`` command: what a person asks beside the workflow.

A command's module is imported when the command runs, so that ``ddlbench --help`` is quick. A new
command is one line of the table below, and its module in ``commands/``. Another package adds one by
an entry point of the group ``ddlbench.commands``, whose help is the summary of that package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from copy import copy
from functools import cache
from io import TextIOWrapper
from typing import Any

import click

from ddlbench import __version__
from ddlbench.common.entry_points import described, installed, load_target, third_party, within
from ddlbench.common.errors import ConfigError, file_fault
from ddlbench.common.screen import say_error

# Heading -> name of a command -> the first sentence of its help. A command is the function of its
# name in the module of its name, unless that is named below.
COMMANDS = {
    "Measure": {
        "plan": "Say what an experiment will cost before it runs.",
        "check": "Train tiny steps with each strategy, and compare with one device.",
        "status": "Say what runs, what failed, and why.",
        "report": "Make tables, figures and an HTML report of the results so far.",
        "compare": "Compare two results, and fail where one became slower.",
    },
    "Predict and choose": {
        "predict": "Predict one cell: time of a step, its parts, memory.",
        "recommend": "Rank the strategies for a network on so many devices.",
        "calibrate": "Learn constants of predictions from measured cells or runs.",
        "oracle": "Project and choose ways to cut a network.",
    },
    "Published": {
        "papers": "List the published figures and tables, and how to make each.",
    },
    "Cluster": {
        "site": "Describe a cluster, check it, or make a device to emulate.",
        "links": "Show, judge and emulate the links between devices.",
    },
}

# Commands below a command, as ``ddlbench report export``, and their modules.
BELOW: Mapping[str, Mapping[str, str]] = {
    "status": {"forget": "results"},
    "report": {"timeline": "timeline", "export": "results", "reference": "compare"},
    "predict": {"accuracy": "predict"},
    "recommend": {"tune": "tune", "largest-batch": "predict"},
}

_MODULES = {"status": "results", "report": "results"}


GROUP = "ddlbench.commands"
_BUILT_IN = frozenset(name for commands in COMMANDS.values() for name in commands)


def _names_below() -> list[str]:
    return [f"{name} {below}" for name, commands in BELOW.items() for below in commands]


@cache
def _added() -> dict[str, str]:
    """Commands of other packages, and the summary of each one's package."""
    names = third_party(GROUP, _BUILT_IN)
    return {
        entry.name: entry.dist.metadata["Summary"] if entry.dist else ""
        for entry in installed(GROUP)
        if names.get(entry.name) == entry.value
    }


def _function(name: str, module: str) -> click.Command:
    name = name.replace("-", "_")
    command: click.Command = getattr(importlib.import_module(f"ddlbench.commands.{module}"), name)
    return command


def _of_package(name: str) -> click.Command:
    """A command of another package, whose faults end in a sentence that names it."""
    target = third_party(GROUP, _BUILT_IN)[name]
    command = load_target(name, target)
    if not isinstance(command, click.Command):
        raise ConfigError(
            f"{described(GROUP, name)}: {target} is no click command; write @click.command() above "
            "the function"
        )
    command, invoke = copy(command), command.invoke

    def guarded(ctx: click.Context) -> Any:
        try:
            return invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if file_fault(error):  # a path that the user gave
                raise
            with within(GROUP, name):
                raise

    command.invoke = guarded  # type: ignore[method-assign]
    return command


class _WithCommandsBelow(click.Group):
    """A command that has others below it: the first argument may name one of them."""

    allow_extra_args = False
    allow_interspersed_args = True

    def __init__(self, first: click.Command, below: Mapping[str, str]) -> None:
        super().__init__(
            first.name,
            callback=first.callback,
            params=first.params,
            help=first.help,
            short_help=first.short_help,
            epilog=first.epilog,
            no_args_is_help=False,
        )
        self._below = below

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands below."""
        return [*self._below]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command below; None if there is none of that name."""
        return _function(cmd_name, self._below[cmd_name]) if cmd_name in self._below else None

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of the command below that is named, or of this command."""
        if not args or args[0] not in self._below:
            return super().make_context(info_name, args, parent, **extra)
        above = click.Context(self, parent, info_name)
        below = _function(args[0], self._below[args[0]])
        return below.make_context(args[0], args[1:], above, **extra)

    # What is no name below is parsed and run as by any command.
    parse_args = click.Command.parse_args
    invoke = click.Command.invoke
    collect_usage_pieces = click.Command.collect_usage_pieces


class _LazyCommands(click.Group):
    """Commands under the headings of what they are for, each imported when it is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the help text."""
        return [*(name for commands in COMMANDS.values() for name in commands), *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        if cmd_name in _added():
            return _of_package(cmd_name)
        if cmd_name not in _BUILT_IN:
            return None
        command = _function(cmd_name, _MODULES.get(cmd_name, cmd_name))
        below = BELOW.get(cmd_name)
        return _WithCommandsBelow(command, below) if below else command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments; a wrong name ends with the nearest right one."""
        names = self.list_commands(ctx)
        if not args[0].startswith("-") and args[0] not in names:
            from ddlbench.experiment.registry import unknown  # noqa: PLC0415 - of a mistake only

            below = [name for name in self._every_name_below(ctx) if name.split()[1] == args[0]]
            if below:
                right = " or ".join(map(repr, below))
                raise ConfigError(f"unknown command {args[0]!r}; did you mean {right}?")
            raise ConfigError(unknown(GROUP, args[0], [*names, *_names_below()]))
        return super().resolve_command(ctx, args)

    def _every_name_below(self, ctx: click.Context) -> list[str]:
        """Commands below all built-in ones, whose modules it imports: for a mistake only."""
        return [
            f"{name} {below}"
            for name in sorted(_BUILT_IN)
            if isinstance(group := self.get_command(ctx, name), click.Group)
            for below in group.list_commands(ctx)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands; no command is imported for it."""
        added = {"Plug-ins": _added()} if _added() else {}
        for heading, commands in {**COMMANDS, **added}.items():
            with formatter.section(heading):
                formatter.write_dl([*commands.items()])
        with formatter.section("Below them"):
            parts = (f"{name}: {', '.join(commands)}" for name, commands in BELOW.items())
            formatter.write_text("; ".join(parts))


@click.group(cls=_LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ddlbench")
def commands() -> None:
    """Measure, predict and choose how to parallelise DNN training on a cluster.

    Start with: ddlbench plan, then snakemake --profile profiles/local
    """


def main() -> None:
    """Run the command; what the user got wrong is one sentence and exit status 2.

    A file that cannot be written or read is one sentence and exit status 1.
    """
    if isinstance(sys.stdout, TextIOWrapper):  # a name of a file may be no text; see write_text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        commands(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "ddlbench"
        fault = " ".join(error.format_message().split()).rstrip(".?")  # choices have lines of tabs
        say_error(ConfigError(f"{fault}; see {command} --help"))
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        say_error(error)
        sys.exit(2)
    except OSError as error:
        if file_fault(error) is None:  # of no file, so perhaps our own mistake
            raise
        say_error(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
