"""GPUs that are not there: tensors that compute on the CPU, and say that they are on ``cuda:0``.

::

    networks, data   ->  labelled tensors        "cpu", "cuda:0", "cuda:1"
    an operation     ->  computes on the CPU     an error if labels differ, as on a GPU
    torch.cuda       ->  stand-ins               events, streams, devices; they count what waits
    nccl             ->  torch's backend "fake"  one rank alone, whose messages go nowhere

So a rank's code for GPUs runs in a test. This proves where tensors are, and what the host waits
for. It proves no speed, no memory, no order of streams, and no values that come from other ranks.

Torch's C++ takes a labelled tensor for one of the CPU. So it makes new tensors there, which get the
label of the tensors that they are made of, or of the current GPU where DDP and autograd make them.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ddlbench.networks import block_forms

CPU = torch.device("cpu")
_COPIES = ("copy_", "_to_copy")  # from any device to any other
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
_OF_GPUS = ("pin_memory", "non_blocking")  # arguments that a build for CPUs refuses
_MESSAGES = ("c10d", "_c10d_functional")
_WRAPPERS = {DTensor, AsyncCollectiveTensor}  # they compute with labelled tensors within
_CALL_CPP = ("torch/nn/parallel/distributed.py", "torch/autograd/graph.py")
_BETWEEN = (__file__, "torch/_compile.py", "torch/_dynamo/eval_frame.py")

waits: Counter[str] = Counter()
"""How often the host waited for a GPU: "synchronize", and "number" that it read from a tensor."""
_local = threading.local()  # the current GPU of a thread, and where its next copy goes


class Labelled(torch.Tensor):
    """A tensor of the CPU, with the label of a device."""

    label: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(plain, device):
        """The same memory, on ``device``."""
        made = torch.Tensor._make_subclass(Labelled, plain, plain.requires_grad)
        made.label = device
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _computed(operation, types, args, kwargs or {})

    @property
    def device(self):
        return self.label

    @property
    def is_cuda(self):
        return self.label.type == "cuda"

    def to(self, *args, copy=False, **kwargs):
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        target, dtype = _named(device or self.label), dtype or self.dtype
        if not copy and (target, dtype) == (self.label, self.dtype):
            return self
        _local.target = target
        return torch.ops.aten._to_copy(self, dtype=dtype)

    def cpu(self):
        return self.to(CPU)

    def tolist(self):
        return self._plain().tolist()

    def numpy(self):
        assert not self.is_cuda, "a tensor of a GPU cannot be a NumPy array"
        return self._plain().numpy()

    def record_stream(self, stream):
        assert self.is_cuda and isinstance(stream, _Stream)

    def _plain(self):
        waits["number"] += self.is_cuda
        with torch._C._DisableTorchDispatch():
            return self.detach().as_subclass(torch.Tensor)


class _Mode(TorchDispatchMode):
    """Sees operations that have no labelled tensor among their arguments."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _computed(operation, types, args, kwargs or {})


def _computed(operation, types, args, kwargs):
    if _WRAPPERS.intersection(types):
        return NotImplemented
    name = operation.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    device = _device_of(operation, name, tensors)
    kwargs = {key: value for key, value in kwargs.items() if key not in _OF_GPUS}
    if (wanted := kwargs.get("device")) is not None:
        kwargs["device"] = CPU
        if _named(wanted) != CPU:
            device = _named(wanted)
        elif not tensors and _made_by_cpp():
            device = _named("cuda")
    if name == "_to_copy" and getattr(_local, "target", None) is not None:
        device, _local.target = _local.target, None
    waits["number"] += name == "_local_scalar_dense" and tensors[0].device.type == "cuda"
    with torch._C._DisableTorchDispatch():
        outputs = operation(*args, **kwargs)
    if device == CPU and not any(isinstance(tensor, Labelled) for tensor in tensors):
        return outputs
    return tree_map_only(
        torch.Tensor, lambda t: Labelled.of(t, device) if type(t) is torch.Tensor else t, outputs
    )


def _device_of(operation, name, tensors):
    """Where an operation computes; an error if its tensors are on several devices."""
    if name in _COPIES or name in _INDEXING:
        return tensors[0].device
    # An operation may take a single number from the CPU.
    several = [tensor for tensor in tensors if tensor.dim()] or tensors
    places = {tensor.device: tuple(tensor.shape) for tensor in several}
    if len(places) > 1:
        raise RuntimeError(f"{operation}: tensors are on different devices: {places}")
    device = next(iter(places), CPU)
    if operation.namespace in _MESSAGES and tensors and device == CPU:
        raise RuntimeError(f"{operation}: NCCL sends no tensor of the CPU")
    return device


def _named(device):
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _made_by_cpp():
    """Whether C++ of DDP or autograd makes a tensor, rather than Python."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename.endswith(_CALL_CPP)


def on_cpu(module):
    """Label all parameters and buffers of a module, in place; those that are shared stay so."""
    made = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is None or isinstance(tensor, (Labelled, *_WRAPPERS)):
                    continue
                if tensor not in made:
                    made[tensor] = Labelled.of(tensor.detach(), CPU)
                    if isinstance(tensor, nn.Parameter):
                        made[tensor] = nn.Parameter(made[tensor], tensor.requires_grad)
                        made[tensor].label = CPU
                held[name] = made[tensor]
    return module


def _apply(module, function, recurse=True):
    """``nn.Module._apply`` for moves: a parameter stays the same object, as with real GPUs."""
    for part in on_cpu(module).modules():
        for tensor in (*part._parameters.values(), *part._buffers.values()):
            gradient = tensor.grad if isinstance(tensor, nn.Parameter) else None
            for held in (tensor, gradient):
                if held is not None:
                    with torch.no_grad():
                        moved = function(held)
                    assert moved.dtype == held.dtype, "only moves are known here"
                    held.label = moved.device
    return module


class _Event:
    number = 0  # of the last that was recorded

    def __init__(self, **_):
        self.at = None

    def record(self, _stream=None):
        self.at = _Event.number = _Event.number + 1

    def elapsed_time(self, later):
        assert None not in (self.at, later.at), "an event was never recorded"
        return float(later.at - self.at)

    def synchronize(self):
        waits["synchronize"] += 1


class _Stream:
    def __init__(self, device="cuda", **_):
        self.device, self.cuda_stream = _named(device), id(self)

    def record_event(self, event=None):
        event = event or _Event()
        event.record(self)
        return event

    def wait_stream(self, _stream):
        """Nothing is under way."""

    wait_event = wait_stream

    def synchronize(self):
        waits["synchronize"] += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class _Future(dist._Work):
    """A message that is there; DDP waits for its future, which torch's "fake" does not have."""

    def __init__(self, tensors):
        super().__init__()
        self._tensors = tensors

    def wait(self, _timeout=None):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class _WithFutures(dist.ProcessGroup):
    def allreduce(self, tensors, _options=None):
        return _Future(tensors)

    def broadcast(self, tensors, _options=None):
        return _Future(tensors)

    def allgather(self, gathered, parts, _options=None):
        for tensor in gathered[0]:
            tensor.copy_(parts[0])
        return _Future(gathered[0])

    def getBackendName(self):  # noqa: N802 - torch's name
        return "futures"


dist.Backend.register_backend(
    "futures",
    lambda options, _: _WithFutures(options.group_rank, options.group_size),
    extended_api=True,
    devices=["cpu", "cuda"],
)


def _torch_cuda(count):
    """What stands in for the functions of ``torch.cuda``, with so many GPUs."""

    def index_of(device=None):
        index = getattr(_local, "index", 0) if device is None else device
        index = index if isinstance(index, int) else _named(index).index
        assert 0 <= index < count, f"there is no GPU {index}"
        return index

    def set_device(device):
        _local.index = index_of(device)

    @contextmanager
    def within(device):
        before = index_of()
        set_device(device)
        yield
        set_device(before)

    def synchronize(device=None):
        index_of(device)
        waits["synchronize"] += 1

    def of_each(value):
        return lambda device=None: (index_of(device), value)[1]

    def stream_of(device=None):
        return streams.setdefault(index_of(device), _Stream(torch.device("cuda", index_of(device))))

    streams = {}
    return {
        **{"is_available": lambda: True, "is_initialized": lambda: True},
        **{"_lazy_init": lambda: None, "empty_cache": lambda: None},
        **{"device_count": lambda: count, "current_device": index_of, "set_device": set_device},
        **{"device": within, "synchronize": synchronize, "Event": _Event, "Stream": _Stream},
        **{"current_stream": stream_of, "default_stream": stream_of},
        "stream": lambda stream: stream,
        "get_device_properties": of_each(SimpleNamespace(total_memory=1, major=9, minor=0)),
        **{"max_memory_allocated": of_each(1), "max_memory_reserved": of_each(1)},
        **{"memory_allocated": of_each(1), "memory_stats": of_each({})},
        "reset_peak_memory_stats": of_each(None),
        "get_rng_state": of_each(torch.zeros(1, dtype=torch.uint8)),
        "set_rng_state": lambda _state, device: index_of(device),
        "is_current_stream_capturing": lambda: False,
    }


@contextmanager
def gpus(count, *, futures=False):
    """So many GPUs, and NCCL for one rank alone; ``futures`` is for DDP, which needs them."""
    waits.clear()
    _local.index = 0
    begin, receive, autocast = dist.init_process_group, dist.recv, torch.autocast
    move, wrap, run = torch.Tensor.to, torch.Tensor._make_wrapper_subclass, threading.Thread.run
    run_blocks = block_forms.run_blocks

    def init_process_group(backend, store, **others):
        assert backend == "nccl"
        begin("futures" if futures else "fake", store=FakeStore(), **others)

    def recv(tensor, *args, **others):
        receive(tensor, *args, **others)
        tensor.fill_(1)  # "yes", when the stages of torch's pipelines vote

    def to(tensor, *args, **kwargs):
        if type(tensor) is torch.Tensor and not tensor.requires_grad:
            return Labelled.of(tensor, CPU).to(*args, **kwargs)
        return move(tensor, *args, **kwargs)

    def run_thread(thread):
        with _Mode():
            run(thread)

    stand_ins = [(torch.cuda, name, value) for name, value in _torch_cuda(count).items()]
    stand_ins += [
        (nn.Module, "_apply", _apply),
        (torch.Tensor, "to", to),
        (torch.Tensor, "_make_wrapper_subclass", lambda *a, device, **k: wrap(*a, device=CPU, **k)),
        (DTensor, "device", property(lambda tensor: tensor._local_tensor.device)),
        (AsyncCollectiveTensor, "device", property(lambda tensor: tensor.elem.device)),
        (torch, "autocast", lambda _device, **others: autocast("cpu", **others)),
        (threading.Thread, "run", run_thread),
        (sys, "excepthook", sys.excepthook),  # torch wraps it for each process group
        (dist, "init_process_group", init_process_group),
        (dist, "recv", recv),
        (block_forms, "run_blocks", lambda a, b, _device, c: run_blocks(a, b, CPU, c)),
    ]
    with ExitStack() as stack:
        for owner, name, value in stand_ins:
            stack.enter_context(mock.patch.object(owner, name, value))
        torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor needs a real GPU
        stack.callback(torch._C._set_only_lift_cpu_tensors, False)
        yield stack.enter_context(_Mode())
