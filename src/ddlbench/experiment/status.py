"""The status of a cell, and its reason: a sentence for people with a code for statistics.

::

    result.json    ok, out_of_memory, unsupported, timeout      the cell is done
    failure.json   failed                                       the cell runs again
    neither        not run; queued: a SLURM job waits for nodes; running; interrupted: its run is
                   gone; invalid: the file cannot be read; newer: a newer ddlbench wrote it

A failure is no result: the cell runs again. Its file says why, and who wrote that: the cell's
supervisor, its staging, or the login node if the job broke before either could.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from ddlbench.common.document import read_object, write_json
from ddlbench.common.errors import printable
from ddlbench.common.owner import Writer


class Status(StrEnum):
    """State of a cell; the first of several states is the gravest."""

    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    FAILED = "failed"
    INVALID = "invalid"
    NEWER = "newer"
    UNSUPPORTED = "unsupported"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    QUEUED = "queued"
    NOT_RUN = "not run"
    OK = "ok"

    @property
    def is_result(self) -> bool:
        """Whether a cell in this state is done and leaves a result.json."""
        return self in (Status.OK, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.TIMEOUT)


REASON_CODES: Mapping[str, str] = {
    # unsupported: known before a job is submitted
    "unsupported": "the strategy gives no code of its own",
    "uneven_batch": "the mini-batch does not divide over workers, replicas or micro-batches",
    "uneven_groups": "the devices do not divide into equal groups, replicas or stages",
    "too_few_devices": "the strategy needs more devices",
    "one_device_only": "the strategy uses one device",
    "one_node_only": "the strategy drives the devices of one node",
    "wrong_balance": "the balance does not fit the devices, the stages or the network's blocks",
    "unknown_blocks": "the network's blocks are not known before it runs",
    "too_few_blocks": "the network has fewer blocks than there are stages",
    "cannot_be_cut": "the network is one block, so that it has no stages",
    "too_few_to_split": "a layer has fewer rows, filters or channels than there are devices",
    "uneven_split": "heads or hidden features do not divide over the devices of a group",
    "no_such_dimension": "the data lacks the dimension that is split",
    "invalid_schedule": "the schedule cannot be built with these options",
    "conflicting_options": "two options exclude each other",
    "network_dataset_mismatch": "the network does not read this dataset",
    "no_such_format": "the dataset cannot be written in this format",
    "too_few_images": "the dataset has fewer images than one mini-batch",
    "too_few_steps": "fewer steps are measured than there are between two communications",
    "package_missing": "a package that the strategy imports is not installed",
    "stage_too_large": "a stage needs more memory than a device has",
    "site_too_small": "the site has too few nodes, devices or cores",
    "no_link_to_emulate": "the cell has no link that its fabric could shape",
    "no_real_data": "neither the experiment nor the site names real data for the dataset",
    "precision_unavailable": "the device has no such arithmetic",
    "no_accelerator_profile": "the emulated accelerator has no table of the network",
    "layers_not_emulated": "an emulated accelerator cannot split layers",
    "cannot_compile": "torch.compile does not work with the strategy, the network or the machine",
    # unsupported: known when the cell starts
    "emulation_unavailable": "the machine cannot emulate this link",
    "cannot_be_split": "the network is built in a way that the strategy cannot split",
    "mixed_weight_types": "the trained weights are not of one type",
    "backward_within": "the network computes gradients of weights in its forward pass",
    "nothing_trained": "no weight of the network gets a gradient",
    "initial_weights_differ": "ranks would begin with different weights",
    "settings_changed": "the network changes torch's settings while it trains",
    "one_sample_normalised": "batch norm would see a single sample at a time",
    "no_gradient_at_cut": "a stage would receive values that have no gradient",
    "recomputation_differs": "a forward pass that runs again gives other values",
    "split_backward_differs": "backward passes in two parts give other gradients than a whole one",
    "weights_unsupported": "the strategy's library does not take weights or gradients of this kind",
    "no_compiler": "an operation that the strategy needs cannot be compiled on the node",
    "no_checkpoint": "the strategy's state cannot be saved",
    "no_validation": "the trained network cannot be put together, or has no trained weights",
    "device_unsupported": "the strategy or an option does not work on this kind of device",
    # out_of_memory
    "out_of_memory_cuda": "memory of a GPU ran out",
    "out_of_memory_host": "memory of the host ran out",
    "out_of_memory_killed": "the kernel killed a rank for memory",
    "out_of_memory_job": "SLURM ended the job for memory",
    # timeout
    "time_limit": "the cell ran into the site's cell_timeout_s",
    "time_limit_job": "SLURM ended the job at its time limit",
    # failed
    "exception": "a rank raised an error",
    "connection_lost": "a connection, a disk or a device of a rank gave way",
    "rank_killed": "a signal ended a rank",
    "rank_lost": "a rank ended without a report",
    "supervisor_ended": "a signal ended the process that watches a cell's ranks",
    "hang": "no step finished for hang_timeout_s",
    "wrong_environment": "a variable or a name of the machine is known to crash the ranks",
    "link_unfit": "the emulated link did not become, or stay, what it should be",
    "staging_failed": "a node could not make or keep the data",
    "not_submitted": "SLURM did not take the job",
    "never_starts": "SLURM would never start the job",
    "job_preempted": "SLURM ended the job for another one",
    "job_cancelled": "somebody cancelled the job; the next run submits it again",
    "job_lost": "the job ended before the cell's own code could say why",
    # a candidate that `ddlbench recommend` does not rank
    "too_large": "the model of memory says that it does not fit",
    "no_prediction": "no predictor models it here, or an input of the predictor is missing",
    "old_weights": "it updates with gradients of older weights",
    "other_update": "an update sums another number of samples",
    "other_training": "its measured cell does not train as one device does",
    "no_step": "its cell was measured for the choice and ended without a step",
    "fault": "code of the strategy raised an error",
    # no result
    "invalid_result": "result.json cannot be read, or is of another cell or site",
    "newer_result": "a newer ddlbench wrote result.json",
    "no_result": "there is no result.json",
    "supervisor_lost": "what measured the cell is gone and has written nothing",
}


class Reason(str):
    """Why a cell is in its state: a sentence with its code, of :data:`REASON_CODES` or others'.

    The sentence is :func:`printable`, as it may name a file of the user.
    """

    __slots__ = ("code",)
    code: str

    def __new__(cls, code: str, sentence: str) -> Reason:
        reason = super().__new__(cls, printable(sentence))
        reason.code = code
        return reason

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        return Reason, (self.code, str(self))


def code_of(reason: str | None) -> str:
    """The code of a reason: "unsupported" for a plain sentence, and empty without a reason."""
    if not reason:
        return ""
    return reason.code if isinstance(reason, Reason) else "unsupported"


def reason_code(reason: str | None, status: str) -> str | None:
    """The code of a reason; None when ok, the status itself for a plain sentence."""
    if status == Status.OK:
        return None
    return reason.code if isinstance(reason, Reason) else str(status)


def reason_of(error: BaseException, default_code: str) -> Reason:
    """The Reason of an exception, else its text with the default code."""
    if error.args and isinstance(error.args[0], Reason):
        return error.args[0]
    return Reason(default_code, str(error))


FAILURE_FILE = "failure.json"

Cause = Literal["program", "infrastructure"]


@dataclass(frozen=True)
class Failure:
    """Why a cell failed.

    Args:
        cause: a program that crashed would crash again; what the infrastructure broke is repeated.
        reason: sentence with its code.
        writer: the job that failed.
        log_tail: last lines of its output.
        link: report of an emulated fabric.
    """

    cell_id: str
    cause: Cause
    reason: Reason
    writer: Writer | None
    log_tail: Sequence[str] = ()
    link: dict[str, Any] | None = None

    def write(self, cell_folder: Path) -> None:
        document = {
            "status": Status.FAILED,
            "cause": self.cause,
            "reason": self.reason,
            "reason_code": self.reason.code,
            "log_tail": list(self.log_tail),
            "cell_id": self.cell_id,
            "link": self.link,
            "writer": None if self.writer is None else self.writer.to_dict(),
        }
        write_json(cell_folder / FAILURE_FILE, document)

    @classmethod
    def read(cls, cell_folder: Path) -> Failure | None:
        """The failure in a cell's folder; None without one.

        Raises:
            UnreadableJson: the file is damaged.
        """
        try:
            document = read_object(cell_folder / FAILURE_FILE)
        except OSError:
            return None
        code = str(document.get("reason_code", Status.FAILED))
        tail, link = document.get("log_tail"), document.get("link")
        return cls(
            cell_id=str(document.get("cell_id", "")),
            cause="program" if document.get("cause") == "program" else "infrastructure",
            reason=Reason(code, str(document.get("reason", "gives no reason"))),
            writer=Writer.of(document),
            log_tail=[str(line) for line in tail] if isinstance(tail, list) else (),
            link=link if isinstance(link, dict) else None,
        )
