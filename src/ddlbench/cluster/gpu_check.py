"""Whether GPUs compute: a driver's count of them says nothing about that.

A GPU may be visible and yet have no kernels in this build of torch, too old a driver, or a fault.
"""

from __future__ import annotations

from typing import Any

__all__ = ["failure_of", "visible_gpus"]


def visible_gpus() -> list[dict[str, Any]]:
    """``index``, ``name`` and ``error`` (None where it computes) of every GPU that torch sees."""
    import torch  # noqa: PLC0415 - its absence is one of the doctor's findings

    gpus = []
    for index in range(torch.cuda.device_count()):
        try:
            name = torch.cuda.get_device_name(index)
        except Exception as error:  # whatever it is, the user must read it
            name = type(error).__name__
        gpus.append({"index": index, "name": name, "error": failure_of(f"cuda:{index}")})
    return gpus


def failure_of(device: str) -> str | None:
    """Run a convolution whose result is known, forward and backward; the error's text, or None.

    Ones of 2x3x8x8 under four filters of 3x3 ones, unpadded: 2 * 4 * 6 * 6 outputs of 27 each; each
    adds 1 to the 27 inputs that it sees, so the gradients of the inputs have the same sum.
    """
    import torch  # noqa: PLC0415

    known = 2 * 4 * 6 * 6 * 27
    try:
        images = torch.ones(2, 3, 8, 8, device=device, requires_grad=True)
        found = torch.nn.functional.conv2d(images, torch.ones(4, 3, 3, 3, device=device)).sum()
        found.backward()
        assert images.grad is not None
        sums = (found.item(), images.grad.sum().item())
    except Exception as error:  # whatever it is, the user must read it
        return " ".join(str(error).split())[:300] or type(error).__name__
    if sums != (known, known):
        return f"a convolution gives {sums[0]:g} and {sums[1]:g}, right is {known}"
    return None
