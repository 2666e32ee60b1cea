"""What the options of commands that predict and choose ask, and the cells that they measure.

::

    --network vgg11 --dataset cifar10 --geometry 2x4 --batch-size 256
    --configfile mine.yaml            settings, options, site and data of the experiment; of what
                                      it has once, nothing needs to be written again
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.options import matrix_at
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.common.schema import check, nearest
from ddlbench.common.screen import paragraph
from ddlbench.experiment.cell import Cell, OptionValue, axes, parse_geometry
from ddlbench.experiment.config import making_command
from ddlbench.experiment.paths import (
    CONFIG,
    check_results,
    enter_project,
    links_file,
    profile_file,
    project_root,
    result_file,
)
from ddlbench.experiment.profile import ProfileKey
from ddlbench.experiment.registry import BASE, NETWORKS
from ddlbench.experiment.site import load_site
from ddlbench.planning.expected_time import finished_of, put_aside_invalid
from ddlbench.planning.labels import dataset_label, network_label
from ddlbench.predict.advice import range_text
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.question import Question
from ddlbench.predict.recommend import NotMeasured, knowledge_of, result_of, short_cell
from ddlbench.user_parts import check_can_be_built

if TYPE_CHECKING:
    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.result import Glance
    from ddlbench.experiment.site import Site
    from ddlbench.predict.candidate import Candidate, Knowledge

# Options of a command, and the field of a cell that each sets.
_SETTINGS = {
    **{name: name for name in ("fabric", "precision", "optimizer")},
    "threads": "threads_per_device",
}


@dataclass(frozen=True)
class Questions:
    """What the options of a command say.

    ``configfile`` is the experiment whose cells are measured; None for single cells. ``site_given``
    is the name or the path of the site's file, as the user wrote it; empty is the site's name.
    """

    each: tuple[Question, ...]
    site: Site
    configfile: Path | None = None
    site_given: str = ""

    @property
    def single(self) -> Question:
        """The only question.

        Raises:
            ConfigError: there are several geometries.
        """
        if len(self.each) > 1:
            raise ConfigError("--geometry: this takes one geometry; several are for recommend")
        return self.each[0]

    def single_of(self, strategy: str) -> Question:
        """The only question, about one strategy.

        Raises:
            ConfigError: there are several geometries, there is no such strategy, or an option of
                another strategy is given, which has no effect.
        """
        question = self.single
        question.written_options(strategy)
        for other in sorted(question.options.keys() - {strategy, BASE}):
            option = next(iter(question.options[other]))
            raise ConfigError(
                f"--option {other}.{option} has no effect on {strategy}; leave it out, or write "
                f"--strategy {other}"
            )
        return question

    def knowledge(self, **settings: Any) -> Knowledge:
        """What the site knows of the questions; ``settings`` are fields of the knowledge."""
        return replace(knowledge_of(self.each[0], Inputs(self.site.name), self.site), **settings)

    def knowledge_of(self, question: Question, known: Knowledge) -> Knowledge:
        """What is known of one of the questions; ``known`` is of all of them."""
        return known

    def grounds(self) -> list[str]:
        """Lines that say on what answers rest, where nothing was measured."""
        return []


def questions_of(values: dict[str, Any], batch_size: int | None = None) -> Questions:
    """The questions that the options of :func:`cell_options` make.

    ``batch_size`` is for commands without such an option.

    Raises:
        ConfigError: something is missing, unknown or not of its kind.
    """
    configfile, site_name = values["configfile"], values["site_name"]
    given = {**values, "batch_size": values.get("batch_size") or batch_size}
    if configfile is None:
        enter_project()
        site, experiment = load_site(site_name or "local"), None
        check_results(site.name)
    else:
        experiment, site, rows = matrix_at(configfile, site_name)
        configfile = Path(experiment.where)
        given = completed(given, experiment, [row.cell for row in rows])
    check_given(given, ("network", "dataset"))
    check_settings(given, _SETTINGS)
    questions = [question_of(given, text, experiment, site) for text in geometries(given)]
    for question in questions:
        question.check_names()
        _check_fabric(question, site)
    _check_network(questions[0], site)
    given_site = site_name if experiment is None else experiment.site
    return Questions(tuple(questions), site, configfile, given_site or "")


def _check_network(question: Question, site: Site) -> None:
    """Refuse a library's or a user's network that does not exist, as no profile can be made of it.

    What has a profile was there when it was made, so that its package need not be on this machine.
    """
    network, dataset = question.network, question.dataset
    if network not in NETWORKS.built_in:
        key = ProfileKey.of(question.cell(BASE))
        if not profile_file(site.name, key.id).is_file():
            check_can_be_built(network, dataset, site)


def check_given(values: dict[str, Any], names: Sequence[str]) -> None:
    """Raise ConfigError for options that are missing: these, the geometry or the batch."""
    missing = [name for name in (*names, "geometry", "batch_size") if not values.get(name)]
    if values.get("batch_per_device") and "batch_size" in missing:
        missing.remove("batch_size")
    if missing:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ConfigError(
            f"{options} {are} missing; write {them}, or name an experiment: --configfile"
        )


def check_settings(values: dict[str, Any], names: Iterable[str]) -> None:
    """Raise ConfigError for options that no cell may have."""
    for name in names:
        if values[name]:
            check(values[name], axes()[_SETTINGS[name]], f"--{name}")


def geometries(values: dict[str, Any]) -> list[str]:
    """The parts of ``--geometry``, each once."""
    return list(dict.fromkeys(part.strip() for part in values["geometry"].split(",")))


def question_of(
    values: dict[str, Any], geometry: str, experiment: Experiment | None, site: Site
) -> Question:
    """The question of one geometry; ``values`` are those of the options."""
    nodes, devices_per_node = parse_geometry(geometry, "--geometry")
    settings = {field: values[name] for name, field in _SETTINGS.items() if values[name]}
    return Question(
        network=values["network"],
        dataset=values["dataset"],
        nodes=nodes,
        devices_per_node=devices_per_node,
        batch_size=values["batch_size"] or values["batch_per_device"] * nodes * devices_per_node,
        settings=settings,
        options=_options(values["options"]),
        experiment=experiment,
        accelerator=site.accelerator,
    )


def _check_fabric(question: Question, site: Site) -> None:
    """Refuse a fabric that the site does not have and whose links nobody has measured."""
    fabric = str(question.all_settings().get("fabric", "default"))
    path = links_file(site.name, fabric)
    if fabric not in site.known_fabrics and not path.is_file():
        raise ConfigError(
            f"site {site.name} has no fabric {fabric!r}; measure its links with "
            f"{making_command(site.name, [path])}, or take another one: "
            f"{nearest(fabric, site.known_fabrics)}"
        )


def completed(
    values: dict[str, Any], experiment: Experiment, cells: Sequence[Cell]
) -> dict[str, Any]:
    """The options, with what the experiment says where it says one thing.

    Raises:
        ConfigError: the experiment has several values of what is not written.
    """
    whole = dict(values)
    several = [cell for cell in cells if cell.devices > 1] or cells
    names = ["network", "dataset", "geometry", *_SETTINGS, "batch_size"]
    per_device = experiment.settings.get("batch_per_device")
    if per_device is not None and not whole["batch_size"]:
        whole["batch_per_device"] = per_device
        names.remove("batch_size")
    for name in names:
        field = _SETTINGS.get(name, name)
        if not whole[name]:
            choices = sorted({getattr(cell, field) for cell in several})
            if len(choices) > 1:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(
                    f"{experiment.where} has several values; write one: {option} "
                    f"{' | '.join(map(str, choices))}"
                )
            whole[name] = choices[0]
        several = [c for c in several if str(getattr(c, field)) == str(whole[name])] or several
    return whole


def _options(texts: Sequence[str]) -> dict[str, dict[str, OptionValue]]:
    """``gpipe.chunks=8`` as strategy -> option -> value."""
    options: dict[str, dict[str, OptionValue]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        strategy, dot, option = name.rpartition(".")
        if not (equals and dot and strategy and option):
            raise ConfigError(f"--option {text!r}: write strategy.option=value, as gpipe.chunks=8")
        options.setdefault(strategy, {})[option] = option_value(value)
    return options


def option_value(text: str) -> OptionValue:
    """A number or truth value as in JSON, else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def by_workflow(
    questions: Questions, named: Callable[[Cell], str]
) -> Callable[[Cell], Glance | None]:
    """A function that measures a cell with the site's profile of Snakemake.

    It returns None where the cell failed, and raises NotMeasured where the workflow did not begin
    it; the error stream says why.

    ``named`` is what the error stream says is being measured.
    """
    site = questions.site

    def measure(cell: Cell) -> Glance | None:
        path = result_file(site.name, cell.id)
        click.echo(f"measuring {named(cell)} ...", err=True)
        for remark in put_aside_invalid(finished_of([cell.id], site.name), site.name):
            click.echo(remark, err=True)
        command = [sys.executable, "-m", "snakemake", str(path)]
        command += ["--profile", f"profiles/{site.launcher}"]
        command += ["--configfile", str(questions.configfile or CONFIG)]
        command += ["--config", f"site={questions.site_given or site.name}"]
        if questions.configfile is None:  # the cell belongs to no experiment
            command.append("experiment=single-cells")
        ended = subprocess.run(command, cwd=project_root(), check=False, stdout=sys.stderr)
        result = result_of(cell, site.name)
        if result is None:
            click.echo(
                f"{path} was not measured: snakemake ended with {ended.returncode}, see above",
                err=True,
            )
            if not (path.parent / "log.txt").is_file():
                raise NotMeasured("the workflow could not begin a cell; it says why above")
        return result

    return measure


def measured_cell(questions: Questions) -> Callable[[Cell], Cell]:
    """What is measured for a cell: a short one, or the cell of the experiment itself."""
    return short_cell if questions.configfile is None else lambda cell: cell


def case_id(question: Question) -> str:
    """The case as a path: what differs from the defaults of a cell is in its last part."""
    parts = [f"batch_size={question.batch_size}"]
    parts += [f"{name}={value}" for name, value in sorted(question.all_settings().items())]
    parts += [
        f"{strategy}.{key}={value}"
        for strategy, options in sorted(question.all_options().items())
        for key, value in sorted(options.items())
    ]
    network = question.network.replace(":", "@")
    return f"{question.dataset}/{network}/{question.geometry}/{'+'.join(parts)}"


def header(question: Question, site: Site, strategy: str = "") -> str:
    """What is trained, and where."""
    kind = "GPU" if site.device == "cuda" else "CPU worker"
    kind = kind if site.accelerator is None else "emulated device"
    what = f"{strategy} on " if strategy else ""
    trained = f"{network_label(question.network)}, {dataset_label(question.dataset)}"
    return (
        f"{trained}, {what}{question.geometry} ({counted(question.devices, kind)}), "
        f"{counted(question.batch_size, 'sample')} a step, site {site.name}"
    )


_NOISY = 0.25


def noisy_profile(alone: Candidate | None, site: str) -> list[str]:
    """A warning where the profile's own steps lie far apart, on which all predictions rest."""
    step = alone.prediction if alone else None
    interval = step.interval_s if step else None
    if alone is None or step is None or interval is None:
        return []
    if interval[1] - interval[0] <= _NOISY * step.step_s:
        return []
    profile = profile_file(site, ProfileKey.of(alone.cell).id)
    return paragraph(
        f"The profile is noisy: one device's step lies between {range_text(*interval)}. Measure it "
        f"again on a quiet machine: {making_command(site, [profile], anew=True)}"
    )
