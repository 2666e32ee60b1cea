"""What networks read: made-up samples of a dataset's type, and torch's settings.

The settings decide what a process trains and how fast. A module may change them when it is
imported, as many published networks do. They are set back then, because the cell fixes them::

    the cell's settings | import and build a network | set back | warm-up | read again | measure
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddlbench.experiment.dataset_spec import DatasetSpec


def input_dtype(spec: DatasetSpec, floating: torch.dtype = torch.float32) -> torch.dtype:
    """Type of a batch of inputs: integers for tokens, ``floating`` for images and volumes."""
    return floating if spec.input_dtype == "float32" else torch.int64


def made_up_inputs(
    spec: DatasetSpec, samples: int, device: torch.device | str | None = None
) -> Tensor:
    """Random inputs: normal values (N, C, ...) for images and volumes, tokens (N, T) in int64."""
    shape = (samples, *spec.shape)
    if spec.input_dtype == "int64":
        return torch.randint(spec.num_classes, shape, device=device)
    return torch.randn(shape, device=device)


Settings = Mapping[str, Any]
"""Values by the names in :data:`_SETTINGS`: numbers, texts, true and false."""


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def settings_now() -> Settings:
    """What torch says of itself; "mixed" where its older and newer settings contradict."""
    return {name: _read(setting) for name, setting in _SETTINGS.items()}


def _read(setting: _Setting) -> Any:
    try:
        return setting.read()
    except RuntimeError:
        return "mixed"


@contextmanager
def settings_kept() -> Iterator[None]:
    """Set torch's settings back after foreign code, whatever it did."""
    before = settings_now()
    try:
        yield
    finally:
        for name, setting in _SETTINGS.items():  # their order matters
            if _read(setting) != before[name]:
                setting.write(before[name])


def change_between(wanted: Settings, now: Settings) -> str | None:
    """What is not as it should be, for a sentence; None if all is."""
    changed = [
        f"{name} is {now[name]} and not {value}"
        for name, value in wanted.items()
        if now[name] != value
    ]
    return ", ".join(changed) or None


def _attribute(place: Any, name: str) -> _Setting:
    """A setting that is a plain attribute; None in versions of torch that lack it."""
    return _Setting(lambda: getattr(place, name, None), lambda value: setattr(place, name, value))


def _set_default_device(device: str) -> None:
    # None is torch's own default; "cpu" would slow every call that makes a tensor.
    torch.set_default_device(None if device == "cpu" else device)


def _set_deterministic(mode: str) -> None:
    torch.use_deterministic_algorithms(mode != "off", warn_only=mode == "warn")


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


_CUDNN, _MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul
_SETTINGS: dict[str, _Setting] = {
    "threads": _Setting(torch.get_num_threads, torch.set_num_threads),
    "default_dtype": _Setting(
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda name: torch.set_default_dtype(getattr(torch, name)),
    ),
    "default_device": _Setting(lambda: str(torch.get_default_device()), _set_default_device),
    "gradients": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "anomaly_detection": _Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "deterministic": _Setting(_deterministic, _set_deterministic),
    # The newer settings come first: the older ones write some of them, too.
    "fp32_precision": _attribute(torch.backends, "fp32_precision"),
    "mkldnn_convolution": _attribute(
        getattr(torch.backends.mkldnn, "conv", None), "fp32_precision"
    ),
    "matmul_precision": _Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "cudnn_tf32": _attribute(_CUDNN, "allow_tf32"),
    "cudnn": _attribute(_CUDNN, "enabled"),
    "cudnn_benchmark": _attribute(_CUDNN, "benchmark"),
    "cudnn_deterministic": _attribute(_CUDNN, "deterministic"),
    "mkldnn": _Setting(lambda: torch.backends.mkldnn.enabled, torch._C._set_mkldnn_enabled),
    "fp16_sums": _attribute(_MATMUL, "allow_fp16_reduced_precision_reduction"),
    "bf16_sums": _attribute(_MATMUL, "allow_bf16_reduced_precision_reduction"),
}
