"""The reference against plain Python and the layouts, and the probe against stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import children, layouts
from probes.adapters.mcore_layout import HOMES
from tests.probes import inline
from tests.probes.asking import Asker, Reply, component
from tests.probes.plain_compaction import FAULTS, groups_of

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

STAND_IN = '''
"""A stand-in for the upstream module: the same function, a group at a time."""
import torch
from tests.probes.plain_compaction import groups_of

FAULT = {fault!r}


class CompressorInputCompact(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden_local, boundary_hidden, cu_seqlens, global_start, ratio, d_comp, c_cap
    ):
        if c_cap == 0 and FAULT == "no room is refused":
            raise RuntimeError("CUDA Error: cudaErrorInvalidConfiguration")
        if c_cap == 0 and FAULT == "no room is an illegal address":
            raise RuntimeError("CUDA Error: cudaErrorIllegalAddress")
        if FAULT == "raises":
            raise RuntimeError("CUDA Error: cudaErrorUnknown")
        boundary = len(boundary_hidden)
        listed = groups_of(
            cu_seqlens.tolist(), first_row=global_start, rows=len(hidden_local), ratio=ratio,
            overlap=d_comp, fault=FAULT,
        )[:c_cap]
        buffer = torch.cat((boundary_hidden, hidden_local, hidden_local[:ratio]))
        shape = (c_cap * ratio, *hidden_local.shape[1:])
        unwritten = FAULT == "unused rows left unwritten"
        compact = torch.empty(shape, dtype=buffer.dtype) if unwritten else buffer.new_zeros(shape)
        fill = 0 if FAULT == "unused numbers zero" else -1
        numbers = torch.full((c_cap,), fill, dtype=torch.int32)
        source = torch.full((c_cap * ratio,), -1)
        for slot, (number, at) in enumerate(listed):
            rows = torch.arange(ratio) + at - global_start + boundary
            if FAULT == "boundary reversed":
                rows = torch.where(rows < boundary, boundary - 1 - rows, rows)
            compact[slot * ratio : (slot + 1) * ratio] = buffer[rows]
            source[slot * ratio : (slot + 1) * ratio] = rows
            numbers[slot] = number
        ctx.source, ctx.rows, ctx.boundary = source, len(hidden_local), boundary
        return compact, numbers

    @staticmethod
    def backward(ctx, gradient, _):
        full = gradient.new_zeros((ctx.boundary + ctx.rows + 8, *gradient.shape[1:]))
        if FAULT == "rows that nobody reads keep their gradient":
            full[:] = 1
        used = ctx.source >= 0
        places = ctx.source[used] + (1 if FAULT == "gradient one row too far" else 0)
        full[places] = gradient[used]
        own = full[ctx.boundary : ctx.boundary + ctx.rows].contiguous()
        boundary = full[: ctx.boundary].contiguous()
        if FAULT == "gradient of the boundary lost":
            boundary = torch.zeros_like(boundary)
        return own, boundary, None, None, None, None, None
'''


@pytest.fixture
def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Reply]:
    def asked(fault: str = "", *, home: str = HOMES[-1], **parameters: Any) -> Reply:
        tree = asker.folder / "tree"
        file = tree / home
        file.parent.mkdir(parents=True)
        file.write_text(STAND_IN.format(fault=fault), encoding="utf-8")
        asker.trees = {"megatron-core": {"path": str(tree), "revision": "f" * 40, "tree": None}}
        asker.components = {
            "torch": component("2", module="torch"),
            # Any module will do in its place: the stand-in needs no compiler.
            "nvidia-cutlass-dsl": component("4", module="json"),
            "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
        }
        if parameters.pop("pretend", True):
            monkeypatch.setattr(children, "run", inline.run)
        few = {"cp_size": 4, "local_rows": 136, "model": "tiny", "device": "cpu"}
        return asker.here("layout-compaction", **{**few, **parameters})

    return asked


@pytest.mark.parametrize("name", layouts.NAMES)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    cp_size=st.integers(4, 9),
    rows=st.sampled_from([16, 100, 129, 257]),
    ratio=st.sampled_from([4, 128]),
)
def test_the_reference_agrees_with_plain_python_and_with_the_layout(
    name: str, seed: int, cp_size: int, rows: int, ratio: int
) -> None:
    from probes.references import compaction

    overlap = 8 if ratio == 4 else ratio
    if rows < overlap:
        return
    layout = layouts.make(name, seed=seed, cp_size=cp_size, local_rows=rows)
    compressed = layouts.compress(layout, ratio)
    boundary = max(16, overlap)
    own = torch.arange(rows)[:, None] + 1000
    left = torch.arange(boundary)[:, None] + 1
    gradient = torch.arange(compressed.capacity * ratio)[:, None] + 1
    for rank in layout.telling_ranks():
        start = layout.rank_rows(rank).start
        plan = compaction.plan(
            compaction.Question(
                torch.tensor(layout.cu_seqlens), start, rows, boundary, ratio, overlap,
                compressed.capacity,
            )
        )  # fmt: skip
        listed = groups_of(
            layout.cu_seqlens, first_row=start, rows=rows, ratio=ratio, overlap=overlap
        )
        unused = compressed.capacity - len(listed)
        assert plan.groups.tolist() == [number for number, _ in listed] + [-1] * unused
        assert [number for number, _ in listed] == [g for _, g in compressed.rank_groups[rank]]
        compact = compaction.forward(plan, own, left).flatten().tolist()
        wanted = [
            1000 + row - start if row >= start else boundary + 1 - (start - row)
            for _, first in listed
            for row in range(first, first + ratio)
        ]
        assert compact == wanted + [0] * (unused * ratio)
        # Scatter and gather are each other's inverse on the rows that are read.
        own_gradient, left_gradient = compaction.backward(
            plan, gradient, rows=rows, boundary=boundary
        )
        back = compaction.forward(plan, own_gradient, left_gradient).flatten()
        used = len(listed) * ratio
        assert back[:used].tolist() == list(range(1, used + 1))
        read = int((own_gradient != 0).sum()) + int((left_gradient != 0).sum())
        assert read == used


def test_the_reference_refuses_what_it_has_no_room_for() -> None:
    from probes.references import compaction

    cu = torch.tensor([0, 64])
    with pytest.raises(ValueError, match="room for 3"):
        compaction.plan(compaction.Question(cu, 0, 32, 16, 4, 8, 3))
    with pytest.raises(ValueError, match="left of the rows"):
        compaction.plan(compaction.Question(cu, 32, 32, 4, 4, 8, 16))


def test_a_right_stand_in_passes(ask: Callable[..., Reply]) -> None:
    reply = ask(layouts=["ordinary", "padding-rank", "only-short"])
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts)[:2] == [
        "ordinary ratio 4:bfloat16", "padding-rank ratio 4:bfloat16",
    ]  # fmt: skip
    assert len(reply.parts) == 7
    assert reply.measure["mismatches_count"] == 0
    assert reply.measure["rows_compared_count"] > 2000
    assert reply.measure["poison_reaches_buffers"] is True
    capacity = reply.parts["capacity 0"]["measure"]
    assert (capacity["capacity_0"], capacity["refused"]) == ("empty results", False)
    assert len(reply.controls) == 5
    assert all(reply.controls.values())
    assert reply.loaded["megatron-core"]["origin"] == "tree"


def test_rows_of_other_dtypes(ask: Callable[..., Reply]) -> None:
    reply = ask(layouts=["spanning"], cases=["4:float32", "128:float16"])
    assert reply.end["status"] == "pass", reply.end


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(ask: Callable[..., Reply], fault: str) -> None:
    reply = ask(fault, layouts=["spanning", "short-sequences"], cases=["4:bfloat16"])
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics"), fault
    assert "rank" in reply.end["detail"]
    assert reply.measure["mismatches_count"] > 0


def test_no_room_may_be_refused(ask: Callable[..., Reply]) -> None:
    reply = ask("no room is refused", layouts=["spanning"], cases=["4:bfloat16"])
    assert reply.end["status"] == "pass", reply.end
    measure = reply.parts["capacity 0"]["measure"]
    assert measure["refused"] is True
    assert measure["capacity_0"].startswith("cuda:invalid-configuration: CompressorInputCompact")


def test_no_room_may_not_spoil_the_device(ask: Callable[..., Reply]) -> None:
    reply = ask("no room is an illegal address", layouts=["spanning"], cases=["4:bfloat16"])
    assert reply.parts["capacity 0"]["reason"] == "cuda:illegal-address"
    assert reply.end["status"] == "fail"


def test_no_room_is_asked_for_in_a_child(ask: Callable[..., Reply]) -> None:
    reply = ask(layouts=["spanning"], cases=["4:bfloat16"], pretend=False)
    part = reply.parts["capacity 0"]
    steps = [line["name"] for line in reply.of("step")]
    assert part["status"] == "pass", part
    assert steps[-3:] == ["no_room: no room", "no_room: an ordinary call after it", "controls"]


def test_a_launch_error_is_the_upstreams(ask: Callable[..., Reply]) -> None:
    reply = ask("raises", layouts=["ordinary"])
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:unknown")


def test_a_tree_without_the_module_is_skipped(ask: Callable[..., Reply]) -> None:
    reply = ask(home="megatron/core/other.py")
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


def test_another_signature_is_our_error(
    ask: Callable[..., Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.adapters.mcore_layout.COMPACT_PARAMETERS", ("other",))
    reply = ask()
    assert (reply.end["status"], reply.end["reason"]) == ("error", "probe:UnknownShape")


def test_a_seed_means_one_input(ask: Callable[..., Reply]) -> None:
    from probes.layout_compaction import make_inputs

    class Probe:
        parameters = {"model": "tiny", "cp_size": 4, "local_rows": 40}  # noqa: RUF012

        def __init__(self, seed: int) -> None:
            self.seed = seed

    def bits(seed: int) -> Any:
        probe: Any = Probe(seed)
        inputs = make_inputs(probe, torch, torch.device("cpu"), "4:bfloat16")
        return inputs.own.view(torch.int16)

    assert torch.equal(bits(3), bits(3))
    assert not torch.equal(bits(3), bits(4))
