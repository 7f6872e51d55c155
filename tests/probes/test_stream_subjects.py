"""Subjects of the probe `streams`: right calls, and decoys that tell every output apart."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest

from probes.answer import Answer
from probes.session import Session
from tests.probes.asking import Asker

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

from probes.adapters import fe_backward, fe_indexer, mcore_layout  # noqa: E402 - needs torch
from probes.references import compaction, indexer, layout_indices  # noqa: E402 - needs torch
from probes.stream_subjects import Maker  # noqa: E402 - beside what needs torch
from tests.probes import test_sparse_backward  # noqa: E402 - needs torch

NAMES = ("sparse backward", "indexer scores", "indexer top-k", "attention indices", "compaction")


def build_attention_indices(  # noqa: PLR0917 - upstream's own form
    cu_seqlens: Any, global_start: int, l_local: int, d_window: int, window_size: int, ratio: int,
    compressed_width: int, compressed_topk: Any = None, cu_seqlens_compressed: Any = None,
    seq_to_rank_row: Any = None, for_indexer_loss: bool = False,
) -> tuple[Any, Any, Any]:  # fmt: skip
    assert compressed_topk is None
    assert not for_indexer_loss
    question = layout_indices.Question(
        cu_seqlens.long(), global_start, l_local, d_window, window_size, ratio, compressed_width,
        layout_indices.ALL_VISIBLE, None, cu_seqlens_compressed.long(), seq_to_rank_row.long(),
    )  # fmt: skip
    answer = layout_indices.attention_indices(question)
    return answer.indices, answer.lengths, None


class CompressorInputCompact(torch.autograd.Function):  # type: ignore[misc, name-defined]
    @staticmethod
    def forward(  # noqa: PLR0917 - upstream's own form
        ctx: Any, hidden_local: Any, boundary_hidden: Any, cu_seqlens: Any, global_start: int,
        ratio: int, d_comp: int, c_cap: int,
    ) -> tuple[Any, Any]:  # fmt: skip
        question = compaction.Question(
            cu_seqlens.long(), global_start, len(hidden_local), len(boundary_hidden), ratio,
            d_comp, c_cap,
        )  # fmt: skip
        plan = compaction.plan(question)
        return compaction.forward(plan, hidden_local, boundary_hidden), plan.groups


def indexer_forward(
    *, q: Any, k: Any, w: Any, ratio: int, cu_seqlens_q: Any, cu_seqlens_k: Any,
    max_seqlen_q: int, max_seqlen_k: int,
) -> dict[str, Any]:  # fmt: skip
    assert cu_seqlens_q.tolist() == [0, max_seqlen_q] == [0, len(q)]
    assert cu_seqlens_k.tolist() == [0, max_seqlen_k] == [0, len(k)]
    question = indexer.Question((0, len(q)), (0, len(k)), 0, len(q), ratio, max_seqlen_k)
    return {"scores": indexer.scores(question, q, k[:, 0], w).values}


def indexer_top_k(
    *, input_values: Any, seq_lens: Any, top_k: int, next_n: int, return_val: bool
) -> dict[str, Any]:
    assert (next_n, return_val) == (1, False)
    unseen = torch.arange(input_values.shape[1]) >= seq_lens[:, None]
    found = input_values.masked_fill(unseen, float("-inf")).topk(top_k, sorted=False).indices
    return {"indices": found.int()}


@pytest.fixture
def maker(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Maker:
    module = types.SimpleNamespace(
        __name__="layouts",
        build_attention_indices=build_attention_indices,
        CompressorInputCompact=CompressorInputCompact,
    )
    monkeypatch.setattr(mcore_layout, "load", lambda probe: module)
    monkeypatch.setattr(fe_backward, "wrapper", lambda probe: test_sparse_backward.stand_in())
    forward = fe_indexer.Forward(indexer_forward, takes_offsets=True)
    monkeypatch.setattr(fe_indexer, "forward", lambda probe: forward)
    top_k = fe_indexer.TopK(types, indexer_top_k, takes_deterministic=False)
    monkeypatch.setattr(fe_indexer, "top_k", lambda probe: top_k)
    request = asker.request("streams", {"model": "dsv4-flash", "rows": 256})
    answer = Answer(os.open(asker.folder / "answer", os.O_CREAT | os.O_RDWR))
    lanes: Any = None
    return Maker(Session(request, answer), torch, torch.device("cpu"), lanes)


def test_all_functions_have_a_subject(maker: Maker) -> None:
    assert tuple(maker.makers()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_decoys_are_of_the_same_form_and_tell_outputs_apart(maker: Maker, name: str) -> None:
    if name == "sparse backward":
        maker.probe.parameters["model"] = "tiny"
    subject = maker.makers()[name]()
    assert subject.inputs.keys() == subject.decoys.keys()
    for key, tensor in subject.inputs.items():
        decoy = subject.decoys[key]
        assert (tensor.shape, tensor.dtype) == (decoy.shape, decoy.dtype)
        assert tensor.is_contiguous()
    right, repeated = subject.call(subject.inputs), subject.call(subject.inputs)
    other = subject.call(subject.decoys)
    assert subject.differences(torch, repeated, right) == ""
    texts = subject.differences(torch, other, right)
    for output in right:
        assert f"{output}: " in texts
