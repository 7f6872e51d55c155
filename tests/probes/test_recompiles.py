"""Stand-ins that compile once, for each shape, or for each new width."""

from __future__ import annotations

from typing import Any

import pytest

from tests.probes.asking import Reply
from tests.probes.stand_ins import stand_ins

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

__all__ = ["stand_ins"]

CASES = ["indices:0:4", "indices:2:4", "compaction:4", "backward:128"]


def ask(stand_ins: Any, options: dict[str, Any], **parameters: Any) -> Reply:
    few = {"cp_size": 4, "local_rows": [128, 832], "cases": CASES, "compile_again": False}
    reply: Reply = stand_ins("recompiles", options, **{**few, **parameters})
    return reply


KERNELS = [
    "indices mode 0 ratio 4",
    "indices mode 2 ratio 4",
    "compaction forward ratio 4",
    "compaction backward ratio 4",
    "indices mode 1 ratio 128",
    "sparse backward ratio 128",
]


@pytest.mark.parametrize("again", [True, False])
def test_kernels_that_compile_once_pass(stand_ins: Any, again: bool) -> None:
    reply = ask(stand_ins, {"padded": True}, compile_again=again)
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts) == KERNELS
    for part in reply.parts.values():
        assert part["measure"]["first_microbatch_compiles_count"] == 1
        assert part["measure"]["later_compiles_count"] == 0
    assert reply.measure["microbatches_count"] == 12
    assert reply.measure["layout_cache_growth_count"] == 5
    assert reply.measure["backward_compile_cache_growth_count"] == 1
    assert reply.controls == {"a second compilation": True, "compiled in each microbatch": True}


@pytest.mark.parametrize("again", [True, False])
def test_a_compilation_for_each_shape_is_found(stand_ins: Any, again: bool) -> None:
    reply = ask(stand_ins, {"padded": True, "by_shape": True}, compile_again=again)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "recompiles")
    reasons = {name: part["reason"] for name, part in reply.parts.items()}
    assert reasons == dict.fromkeys(KERNELS[:5], "recompiles") | {KERNELS[5]: None}
    part = reply.parts[KERNELS[0]]
    assert part["measure"]["later_compiles_count"] == 11
    assert part["detail"] == "compilations by microbatch: " + ", ".join(["1"] * 12)
    assert reply.measure["compiles_after_first_count"] == 55
    assert reply.measure["layout_cache_growth_count"] == 60


def test_a_compilation_for_each_width_is_found(stand_ins: Any) -> None:
    reply = ask(stand_ins, {})
    assert reply.parts[KERNELS[5]]["reason"] == "recompiles"
    assert reply.parts[KERNELS[5]]["measure"]["compiled"] == "FlashAttentionDSABackwardSm90"
    assert {reply.parts[name]["status"] for name in KERNELS[:5]} == {"pass"}


def test_a_case_that_the_stack_lacks_is_skipped_once(stand_ins: Any) -> None:
    options = {"padded": True, "old": True}
    reply = ask(stand_ins, options, cases=["indexer:4", "compaction:4"])
    parts = {name: part["status"] for name, part in reply.parts.items()}
    assert parts == {
        "indexer:4": "skip",
        "compaction forward ratio 4": "pass",
        "compaction backward ratio 4": "pass",
    }


def test_microbatches_differ_in_rows_sequences_and_length() -> None:
    from probes.recompiles import PROBE, microbatches

    for setting in ("quick", "thorough"):

        class Probe:
            seed = 3
            parameters: Any = PROBE["parameters"][setting]  # type: ignore[index]

        probe: Any = Probe()
        made = microbatches(probe)
        assert len({layout.local_rows for layout in made}) == 12
        assert len({layout.max_seqlen // 128 for layout in made}) >= 11
        assert len({len(layout.lengths) for layout in made}) >= 8


def test_without_a_frontend_the_question_does_not_apply(stand_ins: Any, asker: Any) -> None:
    stand_ins("recompiles", {}, cases=["indices:2:4"], cp_size=4, local_rows=[128, 832])
    del asker.components["nvidia-cudnn-frontend"]
    reply = asker.here("recompiles", device="cpu", model="tiny", cases=CASES)
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


def test_the_counter_is_taken_out_again_and_passes_options_on() -> None:
    from types import SimpleNamespace

    from probes.counting import counted

    class Original:
        version = 4

        def __getitem__(self, options: str) -> Any:
            return lambda function, *arguments: (options, function, arguments)

        def __call__(self, function: Any, *arguments: Any, **options: Any) -> Any:
            raise RuntimeError("refused")

    original = Original()
    cute = SimpleNamespace(compile=original)
    with counted(cute) as counter, counter.during("it"):
        assert cute.compile["O3"](len, 1) == ("O3", len, (1,))
        assert cute.compile.version == 4
        with pytest.raises(RuntimeError, match="refused"):
            cute.compile(len)
        assert (counter.of("it").count, counter.of("it").names) == (2, ["len"])
    assert cute.compile is original
