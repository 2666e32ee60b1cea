"""``ddlbench recommend largest-batch``: the largest batch that a device's memory holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.questions import by_workflow, case_options, questions_of
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import examples, paragraph, show
from ddlbench.planning.memory import capacity_bytes
from ddlbench.predict.candidate import assess
from ddlbench.predict.largest_batch import MemoryOfBatches, batch_advice, smallest_batch
from ddlbench.predict.largest_batch import largest_batch as search
from ddlbench.predict.recommend import result_of

if TYPE_CHECKING:
    pass


@click.command(
    "largest-batch",
    epilog=examples(
        "ddlbench recommend largest-batch --strategy ddp --network vgg11 --dataset cifar10 "
        "--geometry 1x2 --dry-run"
    ),
)
@case_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--dry-run", is_flag=True, help="Only predict; measure no cell.")
@click.option("--trials", type=click.IntRange(1), default=3, show_default=True, help="Most cells.")
@click.option(
    "--device-memory-bytes",
    type=click.IntRange(1),
    help="Memory of one device, where profile and site do not say it.",
)
def largest_batch(
    *,
    strategy: str,
    dry_run: bool,
    trials: int,
    device_memory_bytes: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the largest batch that fits, and confirm it by a cell."""
    questions = questions_of(options, batch_size=1)
    site, here = questions.site, questions.knowledge()
    # The options of a cell follow its batch: take those of a large one, for servers among them too.
    devices = questions.one.devices
    large = questions.one.with_batch(64 * devices * max(1, devices - 1))
    cell = large.cell(strategy).with_(batch_size=1)
    smallest = smallest_batch(cell, site.accelerator)
    candidate = assess(cell.with_(batch_size=smallest), here)
    if candidate.bound is None:
        raise ConfigError(f"{strategy}: {candidate.reason}")
    if candidate.beyond and not dry_run:
        raise ConfigError(f"{candidate.beyond}; --dry-run predicts it")
    workload = here.inputs.workload(cell)
    capacity = device_memory_bytes or capacity_bytes(workload.device_memory_bytes, site)
    if capacity is None:
        raise ConfigError(
            f"the memory of a device of site {site.name} is unknown; give --device-memory-bytes, "
            "or memory_per_device_mb in the site file"
        )
    memory = MemoryOfBatches(cell, site, workload, capacity)
    measure = by_workflow(questions, lambda each: f"{each.strategy} with {each.batch_size} samples")
    largest = search(
        memory, None if dry_run else measure, lambda each: result_of(each, site.name), trials
    )
    lines = [part for line in batch_advice(largest, memory) for part in paragraph(line)]
    show(asdict(largest), lines, as_json=as_json)
