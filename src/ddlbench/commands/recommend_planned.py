"""``ddlbench recommend --hardware``: the same questions of a cluster that nobody has measured.

Of a transformer's shape, layouts are ranked (:mod:`ddlbench.commands.recommend_layouts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlbench.commands.options import matrix_at
from ddlbench.commands.questions import (
    Questions,
    check_given,
    check_settings,
    completed,
    geometries,
    question_of,
)
from ddlbench.common.schema import read_yaml
from ddlbench.common.screen import paragraph
from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.paths import enter_project
from ddlbench.experiment.registry import known
from ddlbench.planning.layer_table import layers_of
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.predict.candidate import Knowledge
from ddlbench.predict.collective_times import COLLECTIVES
from ddlbench.predict.planned_cluster import PlannedCluster, PlannedInputs, batch_ladder
from ddlbench.predict.transformer.configurations import is_configuration, is_shape
from ddlbench.user_parts import check_can_be_built

if TYPE_CHECKING:
    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.predict.question import Question

_ANY_SITE, _FABRIC = "local", "default"


@dataclass(frozen=True, kw_only=True)
class PlannedQuestions(Questions):
    """Questions about hardware; what is known of it comes from its data sheets."""

    cluster: PlannedCluster

    def knowledge(self, **settings: Any) -> Knowledge:
        """What data sheets say of the questions; ``settings`` are fields of the knowledge."""
        known = Knowledge(self.site, self._inputs(self.each), spread_of=self.cluster.doubt.spread)
        return replace(known, **settings)

    def knowledge_of(self, question: Question, known: Knowledge) -> Knowledge:
        """With times at the batches of this question, so that others change none of its numbers."""
        return replace(known, inputs=self._inputs((question,)))

    def _inputs(self, questions: Sequence[Question]) -> PlannedInputs:
        sizes = (batch_ladder(question.batch_size, (question.devices,)) for question in questions)
        return PlannedInputs(self.cluster, set().union(*sizes))

    def grounds(self) -> list[str]:
        """What data sheets and fits say of themselves."""
        stand_in = "" if self.cluster.profile else self.cluster.device.stand_in(self.precision)
        facts = [*self.cluster.facts(), *filter(None, [stand_in])]
        return [line for fact in facts for line in paragraph(fact)]

    @property
    def precision(self) -> str:
        return str(self.each[0].all_settings().get("precision", "fp32"))


def planned_questions_of(
    values: dict[str, Any], hardware: str, profile: str | None, experiment: Experiment | None
) -> PlannedQuestions:
    """The questions that the options of ``recommend`` ask about hardware.

    ``profile`` is of one device, in place of the roofline.

    Raises:
        ConfigError: something is missing or unknown.
    """
    enter_project()
    check_given(values, ("network", "dataset"))
    check_settings(values, ["optimizer"])  # a data sheet may have a precision that no cell has
    cluster = planned_cluster(values, hardware, profile)
    on_default = {**values, "fabric": _FABRIC}
    site: Site = cluster.site
    questions: Sequence[Question] = [
        question_of(on_default, text, experiment, site) for text in geometries(values)
    ]
    for question in questions:
        question.check_names()
    if profile is None:
        network, dataset = questions[0].network, questions[0].dataset
        check_can_be_built(network, dataset, site)  # which strategies cannot train it, too
        layers_of(network, dataset)  # raises once, not per candidate
    planned = PlannedQuestions(tuple(questions), site, cluster=cluster)
    cluster.device.peak(planned.precision)
    return planned


def planned_cluster(
    values: dict[str, Any], hardware: str, profile: str | None = None
) -> PlannedCluster:
    """The cluster that the options describe."""
    shapes = [parse_geometry(text, "--geometry") for text in geometries(values)]
    collectives = values["collectives"] or COLLECTIVES
    return PlannedCluster.named(hardware, values["fabric"], shapes, profile, collectives)


def with_experiment(values: dict[str, Any]) -> tuple[dict[str, Any], Experiment | None]:
    """The options, with the values of which ``--configfile`` has a single one; and the experiment.

    Its site and fabric are not read.

    Raises:
        ConfigError: the file is wrong.
    """
    file = values["configfile"]
    if file is None:
        return values, None
    # The file of a published figure may name no site; any will do, as data sheets replace it.
    experiment, _, rows = matrix_at(file, None if "site" in read_yaml(file) else _ANY_SITE)
    cells = [replace(row.cell, fabric=_FABRIC) for row in rows]
    given = completed({**values, "fabric": _FABRIC}, experiment, cells)
    return {**given, "fabric": values["fabric"], "threads": None, "configfile": None}, experiment


def is_decoder(network: str, dataset: str | None, *, by_software: bool = False) -> bool:
    """Whether a name stands for the shape of a decoder, and not for a network with a dataset.

    With ``by_software``, software that trains transformers is given: then a network of ours that is
    a transformer counts as its shape.
    """
    if is_shape(network):
        return True
    if dataset is not None:
        is_ours = transformer_shape(network, dataset) is not None
        return by_software and (is_ours or is_configuration(network))
    if by_software or is_configuration(network):
        return True
    return network not in known("ddlbench.networks") and ":" not in network
