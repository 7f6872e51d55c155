"""What compiled functions do with tensors of a GPU that is not the current one, in children.

Tensors reach the second GPU by way of the CPU: a direct copy would have torch let the two GPUs use
each other's memory, and a kernel on the wrong GPU would then find its data, only slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from probes.adapters.dsl import ARCH, Dsl
from probes.conditions import Diary
from probes.devices import use_device, wait
from probes.session import Session
from probes.stream_subjects import Maker, Tensors

FIRST: Final = "first call"
SECOND: Final = "second call"
HERE: Final = "call on the first GPU"
AGREE: Final = "answers of both"


class WrongAnswer(Exception):
    """A call that reported success did not do its work."""


class Devices:
    """torch, and the first two devices that it sees; one twice where there is one."""

    def __init__(self, probe: Session) -> None:
        self.torch: Any = probe.load("torch")
        first = use_device(probe, self.torch)
        self.count = int(self.torch.cuda.device_count()) if first.type == "cuda" else 1
        names = [0, min(1, self.count - 1)]
        self.both: list[Any] = (
            [self.torch.device("cuda", name) for name in names]
            if first.type == "cuda"
            else [first, first]
        )

    def current(self, number: int) -> AbstractContextManager[Any]:
        """A block in which one of the two is torch's current device."""
        device = self.both[number]
        current: AbstractContextManager[Any] = (
            self.torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        )
        return current

    def put(self, tensors: Tensors, number: int) -> Tensors:
        """Copies of tensors on one of the two."""
        return {name: tensor.cpu().to(self.both[number]) for name, tensor in tensors.items()}

    def settle(self) -> None:
        """Wait for both."""
        for device in self.both:
            wait(self.torch, device)


def upstream_elsewhere(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Call an upstream function with tensors of one GPU while one is current."""
    diary, devices = Diary(probe), Devices(probe)
    probe.load("nvidia-cutlass-dsl")
    lanes: Any = None  # no subject of upstream's needs them
    maker = Maker(probe, devices.torch, devices.both[0], lanes)
    subject = maker.makers()[str(arguments["subject"])]()
    place, current = int(arguments["tensors"]), int(arguments["current"])
    how = f"{devices.count} GPUs, tensors of number {place}, number {current} is current"
    diary.created(devices.count > 1 and place == 1, how)
    answers: dict[str, Tensors] = {}

    def call(name: str, tensors: int, current: int) -> None:
        inputs = devices.put(subject.inputs, tensors)
        devices.settle()
        with devices.current(current):
            outputs = subject.call(inputs)
        devices.settle()
        answers[name] = {key: tensor.cpu() for key, tensor in outputs.items()}

    diary.attempt(FIRST, lambda: call(FIRST, place, current))
    diary.attempt(SECOND, lambda: call(SECOND, place, current))
    diary.attempt(HERE, lambda: call(HERE, 0, 0))

    def compare() -> None:
        for name in (FIRST, SECOND):
            if name in answers and HERE in answers:
                text = subject.differences(devices.torch, answers[name], answers[HERE])
                if text:
                    raise WrongAnswer(f"{name}: {text}")

    diary.attempt(AGREE, compare)


def strange_tensors(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Call a function of ours on tensors of both GPUs while the first is current."""
    from probes import device_kernels

    diary, devices = Diary(probe), Devices(probe)
    torch, dsl = devices.torch, Dsl(probe)
    driver = probe.load("nvidia-cutlass-dsl", "cuda.bindings.driver")
    described = [dsl.tensor(dsl.cutlass.Int32, 1, align=4) for _ in range(2)]
    with probe.tested("compile", "a kernel of ours"):
        add = dsl.cute.compile(
            device_kernels.add,
            *described,
            dsl.stream(),
            options=f"--enable-tvm-ffi --gpu-arch {ARCH}",
        )
    target, source = (int(arguments[name]) for name in ("target", "source"))
    stream = arguments["stream"]

    def tensor(number: int) -> Any:
        return torch.ones(32, dtype=torch.int32).to(devices.both[number])

    one, other = tensor(target), tensor(source)
    handle = 0
    if stream is not None:
        lane = torch.cuda.Stream(devices.both[int(stream)])
        handle = int(lane.cuda_stream)
    devices.settle()
    words = "the default stream" if stream is None else f"a stream of GPU {stream}"
    how = f"tensors of GPUs {target} and {source}, {words}, GPU 0 is current"
    diary.created(devices.count > 1 and 1 in (target, source, stream), how)

    def call(expected: int) -> None:
        add(one, other, driver.CUstream(handle))
        devices.settle()
        found = one.cpu().tolist()
        if found != [expected] * 32:
            raise WrongAnswer(f"{found[0]} instead of {expected}")

    diary.attempt(FIRST, lambda: call(2))
    diary.attempt(SECOND, lambda: call(3))
    diary.attempt("the other tensor is as it was", lambda: _expect_ones(other))
    fresh = tensor(0)

    def ordinary() -> None:
        add(fresh, tensor(0), driver.CUstream(0))
        devices.settle()
        if fresh.cpu().tolist() != [2] * 32:
            raise WrongAnswer("an ordinary call is wrong")

    diary.attempt(HERE, ordinary)


def _expect_ones(tensor: Any) -> None:
    if tensor.cpu().tolist() != [1] * 32:
        raise WrongAnswer("a tensor that is only read was changed")
