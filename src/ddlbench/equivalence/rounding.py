"""How much of a difference is rounding, and what an error in a rank means.

A network computes in float64, or with a measured tolerance::

    float64     every operation of a pass computes in it   a real difference is far above 1e-10
    as built    float32, bfloat16, ...                     weights are moved by a few units in the
                                                           last place; what that changes is rounding
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddlbench.common.errors import ConfigError, printable, signal_name
from ddlbench.equivalence.rank_pool import RankEnd, RanksFailedError, WorkError
from ddlbench.experiment.status import Status
from ddlbench.runtime.rank_report import classify, innermost
from ddlbench.strategies.training import Loss

Floating = Literal["float64", "as built"]

_Module = TypeVar("_Module", bound=nn.Module)

_SAFETY = 16  # times what moved weights change
_ULPS = 8  # of the largest value of a tensor
_LEAST = {8: 1e-10, 4: 1e-6, 2: 0.0}  # bytes of a number -> least tolerance
_MOVED_ULPS = 16  # of weights; a coarse type moves by 1, as 16 would be much of a weight
_COARSE_EPS = 1e-4


def dtype_of(floating: Floating) -> torch.dtype:
    """Type of floats that a network reads."""
    return torch.float64 if floating == "float64" else torch.float32


def in_float64(network: _Module) -> _Module:
    """Turn all floats into float64 and complex numbers into complex128, in place."""

    def wider(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    for module in network.modules():  # a tensor that is no parameter, as old weight_norm keeps one
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                setattr(module, name, wider(value))
    return network._apply(wider)


class _Coarsest(TorchDispatchMode):
    """Notices the coarsest floats that operations compute: the largest distance from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
            if isinstance(output, Tensor) and _is_number(output):
                self.eps = max(self.eps, torch.finfo(output.dtype).eps)
        return outputs


def coarsest_eps(network: nn.Module, inputs: Tensor) -> float:
    """Of the floats that a pass computes, as in autocast; its buffers may change."""
    with _Coarsest() as coarsest, torch.no_grad():
        network(inputs)
    return coarsest.eps


def trains_in_float64(
    make: Callable[[], nn.Module], inputs: Tensor, labels: Tensor, loss_function: Loss
) -> bool:
    """Whether a network with weights in float64 computes a whole pass in float64.

    ``make`` builds the network anew. ``inputs`` (N, ...) are float64 if they are floats.
    """
    try:
        network = in_float64(make()).train()
        with _Coarsest() as coarsest:
            outputs = network(inputs)
        loss_function(outputs, labels).backward()
    except Exception:  # a type that the network fixes meets another one
        return False
    return coarsest.eps <= torch.finfo(torch.float64).eps


@torch.no_grad()
def move_weights(network: nn.Module, seed: int, least_eps: float = 0.0) -> None:
    """Change each float of the weights by a few units in its last place, up or down.

    ``least_eps`` is of the coarsest floats that the network computes: smaller changes are lost.
    """
    generator = torch.Generator().manual_seed(seed)
    for weight in network.parameters():
        if _is_number(weight):
            eps = max(torch.finfo(weight.dtype).eps, least_eps)
            ulps = 1 if eps > _COARSE_EPS else _MOVED_ULPS
            sign = torch.randint(0, 2, weight.shape, generator=generator) * 2 - 1
            weight.mul_((1 + ulps * eps * sign.double()).to(weight.dtype))


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference of two tensors of one shape; infinite if one is not a number.

    Values that are the same, infinite or not a number included, do not differ.
    """
    if not expected.numel():
        return 0.0
    kind = torch.complex128 if expected.is_complex() or actual.is_complex() else torch.float64
    actual, expected = actual.to(kind), expected.to(kind)
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    distance = torch.where(same, 0.0, (actual - expected).abs())
    return float(distance.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def change(value: Tensor, initial: Tensor) -> Tensor:
    """What training added to numbers; other tensors as they are."""
    return value - initial if _is_number(value) else value


def tolerance(expected: Tensor, moved: float) -> float:
    """Largest difference that rounding explains."""
    if not _is_number(expected):
        return 0.0
    info = torch.finfo(expected.dtype)
    finite = expected.detach().abs().nan_to_num(nan=0.0, posinf=0.0)
    largest = float(finite.max()) if expected.numel() else 0.0
    size = expected.element_size() // (2 if expected.is_complex() else 1)
    return max(_LEAST[size], _ULPS * info.eps * largest, _SAFETY * moved)


class Kind(StrEnum):
    """What a verdict says; the first of several kinds is the gravest."""

    FAILED = Status.FAILED.value
    DIFFERENT = "different"
    EQUAL = "equal"
    UNSUPPORTED = Status.UNSUPPORTED.value


Outcome = Kind | Literal["wrong input"]

_LONGEST_SENTENCE = 300
_LOST = "connection_lost"


class TrialError(WorkError):
    """Why a rank did not train."""

    def __init__(self, outcome: Outcome, reason: str, code: str = "exception") -> None:
        super().__init__(outcome, reason, code)
        self.outcome, self.reason, self.code = outcome, reason, code

    @classmethod
    def of(cls, error: BaseException) -> TrialError:
        """The innermost cause of any error, in one sentence."""
        if isinstance(error, ConfigError):
            return cls("wrong input", str(error), "wrong_input")
        cause = innermost(error)
        status, reason = classify(cause)
        if status is Status.UNSUPPORTED:
            return cls(Kind.UNSUPPORTED, str(reason), reason.code)
        return cls(Kind.FAILED, _sentence(cause), reason.code)


def _sentence(error: BaseException) -> str:
    """The kind of an error and the first sentence of what it says."""
    lines = [line.strip() for line in printable(str(error)).splitlines() if line.strip()]
    first = lines[0].split(". ")[0] if lines else ""
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text if len(text) <= _LONGEST_SENTENCE else f"{text[:_LONGEST_SENTENCE]}..."


def explain(failure: RanksFailedError, limit_s: float) -> TrialError:
    """Why a world of ranks ended: the rank that failed first by itself, not those that lost it."""
    if failure.hung and not failure.ends:
        return TrialError(Kind.FAILED, f"the ranks hang: no end after {limit_s:.0f} s", "hang")
    return min(map(_rank_error, failure.ends), key=_urgency)


def _rank_error(end: RankEnd) -> TrialError:
    if isinstance(end.error, TrialError):
        return end.error
    if end.exit_code is None:
        return TrialError(Kind.FAILED, end.text.strip().splitlines()[-1])
    if end.exit_code < 0:
        name = signal_name(-end.exit_code)
        return TrialError(Kind.FAILED, f"a rank was killed by {name}", "rank_killed")
    return TrialError(Kind.FAILED, f"a rank ended with exit status {end.exit_code}", "rank_lost")


def _urgency(error: TrialError) -> int:
    """Least for the error that explains those of the other ranks."""
    if error.outcome == "wrong input":
        return 0
    if error.outcome == Kind.UNSUPPORTED:
        return 1
    if error.code == "rank_killed":
        return 2
    return 4 if error.code == _LOST else 3
