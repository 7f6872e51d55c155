"""Are results the same on the default stream, on a side stream, and while other streams are busy?

Drives, at sizes that take milliseconds, cuDNN Frontend's `DSA.sparse_attention_backward_wrapper`
(K = 128, lengths), `indexer_forward_wrapper` (one sequence) and `indexer_top_k_wrapper` (distinct
scores), and Megatron Core's `build_attention_indices` (all visible rows, ratio 128) and the forward
of `CompressorInputCompact` (ratio 4). All of them launch on torch's current stream, or say so.

The first answer, on an idle side stream with the device waited for before and after, is what all
others must equal: bit for bit, except dkv and d_sink, whose atomics may round in another order and
which get the tolerances of `probes/sparse_gradients.py`, and chosen indices, whose order in a row
says nothing. Scenarios, each from an idle device:

- default stream, idle, some times over;
- late inputs, on the default stream or on the side stream: the input buffers hold other valid
  inputs; on the stream are queued a kernel that spins and copies of the right inputs; then comes
  the call. What does not wait for its stream reads the other inputs;
- default stream, other streams busy: a spinning kernel occupies all streams that torch hands out.
  Work that upstream put on one of them by mistake then comes too late: torch before 2.13.0 gives
  such a stream to who asks for an external stream of handle 0, meaning the default one;
- side stream, default stream busy.

Outputs are read twice: by a copy queued on the same stream right behind the call, as a caller reads
them, and after all streams have ended. Where a second GPU is there, its results must be the same.

Controls: functions of ours in torch that launch on the wrong stream, or prepare their output there,
must each be noticed by the scenario made for them, and a right one by none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from probes.devices import use_device
from probes.lanes import Lanes
from probes.session import Check, OurFault, Session
from probes.stream_subjects import Maker, Subject, Tensors, elapsed, wrong_subjects

PROBE: Final = {
    "id": "streams",
    "needs": [
        "gpu:sm90",
        "torch",
        "nvidia-cudnn-frontend",
        "nvidia-cutlass-dsl",
        "megatron-core",
    ],
    "required": True,
    "group": "functional",
    "time_limit_s": 300,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 1024,
            "spin_ms": 150,
            "repeats": 20,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 8192,
            "spin_ms": 500,
            "repeats": 200,
        },
    },
}


@dataclass
class Stage:
    """A device and its streams, and how a subject is called on them."""

    probe: Session
    torch: Any
    lanes: Lanes
    spin_s: float
    repeats: int

    def answer(self, subject: Subject, tensors: Tensors, stream: Any) -> list[Tensors]:
        """Call on a stream, and read the outputs at once and at last. Waits for the device."""
        with self.lanes.use(stream):
            outputs = subject.call(tensors)
            copies = {name: self.torch.empty_like(tensor) for name, tensor in outputs.items()}
            for name, tensor in outputs.items():
                self.lanes.submit(partial(copies[name].copy_, tensor))
        self.lanes.wait()
        return [copies, outputs]

    def buffers(self, tensors: Tensors) -> Tensors:
        """Copies to call with, none of them shared with anything, all of them written."""
        made = {name: tensor.clone() for name, tensor in tensors.items()}
        self.lanes.wait()
        return made

    def occupied(
        self,
        streams: list[Any],
        *,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep streams busy, and make sure that they still are when the call comes.

        Args:
            streams: to keep busy.
            before: done while the device is idle.
            after: queues work behind the busy streams.

        Raises:
            OurFault: this process was held up for longer than they spin, three times.
        """
        for factor in (1, 4, 16):
            before()
            for stream in streams:
                self.lanes.occupy(stream, factor * self.spin_s)
            after()
            if all(self.lanes.is_busy(stream) for stream in streams):
                return
            self.lanes.wait()
        raise OurFault("no stream stayed busy until the call")

    def idle(self, subject: Subject) -> Iterator[list[Tensors]]:
        for _ in range(self.repeats):
            yield self.answer(subject, self.buffers(subject.inputs), self.lanes.default)

    def late(self, subject: Subject, stream: Any) -> Iterator[list[Tensors]]:
        tensors = self.buffers(subject.decoys)

        def prepare() -> None:
            for name, tensor in tensors.items():
                tensor.copy_(subject.decoys[name])
            self.lanes.wait()

        def fill() -> None:
            with self.lanes.use(stream):
                for name, tensor in tensors.items():
                    self.lanes.submit(partial(tensor.copy_, subject.inputs[name]))

        self.occupied([stream], before=prepare, after=fill)
        yield self.answer(subject, tensors, stream)

    def others_busy(self, subject: Subject) -> Iterator[list[Tensors]]:
        tensors = self.buffers(subject.inputs)
        self.occupied(self.lanes.pool)
        yield self.answer(subject, tensors, self.lanes.default)

    def default_busy(self, subject: Subject) -> Iterator[list[Tensors]]:
        tensors = self.buffers(subject.inputs)
        self.occupied([self.lanes.default])
        yield self.answer(subject, tensors, self.lanes.side)

    def scenarios(self) -> dict[str, Callable[[Subject], Iterator[list[Tensors]]]]:
        """By name; each gives everything that was read, one call at a time."""
        return {
            "default stream, idle": self.idle,
            "default stream, late inputs": lambda subject: self.late(subject, self.lanes.default),
            "side stream, late inputs": lambda subject: self.late(subject, self.lanes.side),
            "default stream, other streams busy": self.others_busy,
            "side stream, default stream busy": self.default_busy,
        }


def run(probe: Session) -> None:
    """Every function in every scenario, then the controls."""
    # Streams share this many queues of the hardware, and one in a queue may hold up another. Many
    # of them keep accidental order from hiding a fault. It counts when CUDA is initialised.
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    lanes = make_lanes(torch, device)
    stage = Stage(
        probe, torch, lanes, float(probe.parameters["spin_ms"]) / 1000,
        int(probe.parameters["repeats"]),
    )  # fmt: skip
    maker = Maker(probe, torch, device, lanes)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 1
    for name, make in makers(maker).items():
        probe.step(f"{name}: prepare")
        subject = None
        with probe.check(name, step=False) as check:
            subject = make()
            check.expect(subject.inputs, "probe:NoInputs", "nothing to call with", status="error")
        if subject is not None:
            _subject(stage, name, subject, gpus=gpus)
    probe.measure(
        gpus_count=gpus,
        spin_ms=float(probe.parameters["spin_ms"]),
        external_stream_0_is_default=wraps_default(torch) if device.type == "cuda" else None,
    )
    _controls(stage, device)


def make_lanes(torch: Any, device: Any) -> Lanes:
    """The streams of the device."""
    return Lanes(torch, device)


def makers(maker: Maker) -> dict[str, Callable[[], Subject]]:
    """The functions to drive."""
    return maker.makers()


def wraps_default(torch: Any) -> bool | None:
    """Whether an external stream of the default stream's handle is that stream, as torch has it.

    None where torch refuses to make one.
    """
    try:
        return int(torch.cuda.ExternalStream(0).cuda_stream) == 0
    except (RuntimeError, ValueError):
        return None


def _subject(stage: Stage, name: str, subject: Subject, *, gpus: int) -> None:
    probe, torch, lanes = stage.probe, stage.torch, stage.lanes
    right: Tensors = {}
    with probe.check(f"{name}: side stream, idle") as check:
        answers = []
        for attempt in ("first", "repeated"):
            started = time.perf_counter()
            tensors = stage.buffers(subject.inputs)
            with probe.tested("call", f"{name}, {attempt} call, side stream"):
                answers += stage.answer(subject, tensors, lanes.side)
            check.measure[f"{attempt}_call_s"] = elapsed(started)
        with probe.tested("call", f"{name} with other inputs"):
            others = stage.answer(subject, stage.buffers(subject.decoys), lanes.side)
        _expect_none(_wrong(torch, subject, answers, answers[0]), len(answers), check)
        telling = subject.differences(torch, others[0], answers[0])
        check.measure["telling_outputs"] = telling
        check.expect(
            telling,
            "probe:SameAnswer",
            "other inputs give the same answer, so nothing would show",
            status="error",
        )
        right = answers[0]
    if not right:
        return  # its own part says why
    for scenario, play in stage.scenarios().items():
        with probe.check(f"{name}: {scenario}") as check:
            wrong: list[str] = []
            count = 0
            played = play(subject)
            while True:
                with probe.tested("call", f"{name}, {scenario}"):
                    found = next(played, None)
                if found is None:
                    break
                count += len(found)
                wrong += _wrong(torch, subject, found, right)
            _expect_none(wrong, count, check)
    if gpus > 1:
        _second_gpu(stage, name, subject, right)


def _second_gpu(stage: Stage, name: str, subject: Subject, right: Tensors) -> None:
    probe, torch = stage.probe, stage.torch
    device = torch.device("cuda", 1)
    with probe.check(f"{name}: second GPU") as check, torch.cuda.device(device):
        tensors = {key: tensor.to(device) for key, tensor in subject.inputs.items()}
        torch.cuda.synchronize(device)
        with probe.tested("call", f"{name} on the second GPU"):
            outputs = subject.call(tensors)
            torch.cuda.synchronize(device)
        back = {key: tensor.to(right[key].device) for key, tensor in outputs.items()}
        _expect_none(_wrong(torch, subject, [back], right), 1, check)


def _wrong(torch: Any, subject: Subject, found: list[Tensors], right: Tensors) -> list[str]:
    """For each answer that differs from the right one, how."""
    texts = [subject.differences(torch, answer, right) for answer in found]
    return [text for text in texts if text]


def _expect_none(wrong: list[str], count: int, check: Check) -> None:
    check.measure["answers_count"] = count
    check.measure["wrong_answers_count"] = len(wrong)
    first = wrong[0] if wrong else ""
    check.expect(not wrong, "nondeterministic", f"{len(wrong)} of {count} answers differ; {first}")


def _controls(stage: Stage, device: Any) -> None:
    """Put functions of ours through the scenarios."""
    stage.probe.step("controls")
    noticed: dict[str, list[str]] = {}
    made = wrong_subjects(stage.torch, device, stage.lanes)
    for name, (_, subject) in made.items():
        # By hand: a wrong function has no right baseline of its own.
        right = {"out": subject.inputs["x"] * 2}
        stage.lanes.wait()
        noticed[name] = [
            scenario
            for scenario, play in stage.scenarios().items()
            if any(_wrong(stage.torch, subject, found, right) for found in play(subject))
        ]
    fine = not noticed["right"]
    for name, (scenario, _) in made.items():
        if scenario:
            stage.probe.control(
                name,
                failed=scenario in noticed[name] and fine,
                detail=f"noticed: {'; '.join(noticed[name]) or 'never'}; "
                f"a right one: {'; '.join(noticed['right']) or 'never'}",
            )
