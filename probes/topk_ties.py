"""Are the same groups selected again when scores are equal, and with gradients as without?

Drives cuDNN Frontend's `DSA.indexer_top_k_wrapper` on SM90 as the probe `indexer-topk` does: scores
(rows, columns) in float32, lengths (rows,) in int32, K indices of each row in int32. Scores are all
equal, of eight values, or distinct but for those around the cut. Then Megatron Core's own
`indexer_topk` (packed THD, one sequence, bfloat16 queries (rows, heads, 128), keys (groups, 128) of
which only eight differ, weights (rows, heads), ratio 4), whose scores are equal wherever keys are.

Which of equal scores is chosen is free. But training computes a layer twice, without gradients and
again with them, and a selection that differs between the two gives gradients of another function
than the one that ran. So the set of indices must be the same on every repeat (`nondeterministic`
otherwise; how many rows vary is measured), and the same without and with gradients. The chosen
scores must be those of torch's own selection, as a multiset and exactly, with no index twice
(`numerics` otherwise). Where a frontend can be asked for `deterministic`, indices must repeat in
their order too, ascend, and the smallest of equal ones win, as it documents. What a stack cannot be
asked is measured, not skipped. All calls run on a stream of their own, so that races for the
default stream do not count here.

Controls: an equal score at another place must be noticed as another selection, a smaller score and
an index that comes twice as wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_indexer, mcore_topk
from probes.adapters.fe_indexer import DETERMINISTIC_KEYWORD, TopK
from probes.devices import own_stream, poison_works, poisoned_memory, use_device, wait
from probes.selection import Scores, cut_to_length, draw_lengths, select
from probes.session import Check, Concluded, Session

PROBE: Final = {
    "id": "topk-ties",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    "required": False,
    "group": "functional",
    "time_limit_s": 300,
    "parameters": {
        "quick": {
            "device": "cuda",
            "rows": 256,
            "case": "16384:512",
            "repeats": 20,
            "model": "dsv4-flash",
            "sequence_rows": 8192,
            "core_repeats": 5,
        },
        "thorough": {
            "device": "cuda",
            "rows": 1024,
            "case": "65536:512",
            "repeats": 200,
            "model": "dsv4-flash",
            "sequence_rows": 16384,
            "core_repeats": 50,
        },
    },
}

KINDS: Final = ("constant", "eight values", "ties at the cut")
RATIO: Final = 4


def run(probe: Session) -> None:
    """The wrapper, the wrapper asked for determinism, Megatron Core; then the controls."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    top_k = fe_indexer.top_k(probe)
    probe.measure(
        poison_reaches_buffers=poison_works(torch, device),
        takes_deterministic=top_k.takes_deterministic,
    )
    count = int(str(probe.parameters["case"]).partition(":")[2])
    for kind in KINDS:
        scores = make_scores(probe, torch, device, kind)
        with own_stream(torch, device):
            with probe.check(f"wrapper, {kind}") as check:
                _wrapper(probe, torch, top_k, scores=scores, count=count, check=check)
            if top_k.takes_deterministic:
                with probe.check(f"wrapper asked for determinism, {kind}") as check:
                    _deterministic(probe, torch, top_k, scores=scores, count=count, check=check)
    _core_part(probe, torch, device)
    _controls(probe, torch, device, count)


def make_scores(probe: Session, torch: Any, device: Any, kind: str) -> Scores:
    """Scores with ties; drawn on the CPU.

    Raises:
        ValueError: no such kind.
    """
    columns, count = (int(number) for number in str(probe.parameters["case"]).split(":"))
    rows = int(probe.parameters["rows"])
    random = torch.Generator().manual_seed(probe.seed)
    drawn = torch.rand((rows, columns), generator=random).to(device)
    match kind:
        case "constant":
            values = torch.full_like(drawn, 0.75)
        case "eight values":
            values = (drawn * 8).floor() - 3.5
        case "ties at the cut":
            # From the largest down; those from a little before the cut to far behind it are equal.
            place = drawn.argsort(dim=1, stable=True).argsort(dim=1)
            first = max(0, count - 10)
            tied = (place >= first) & (place < count + columns // 4)
            values = -1 - torch.where(tied, first, place).float()
        case _:
            raise ValueError(f"no such kind of scores: {kind}")
    lengths = draw_lengths(torch, rows=rows, columns=columns, count=count, random=random)
    return cut_to_length(torch, values, lengths)


def wrong_rows(torch: Any, indices: Any, scores: Scores, count: int) -> Any:
    """(rows,) bool: rows whose chosen scores are not the largest, whichever of equal ones.

    An index beyond the row's length, or one that comes twice, is wrong as well.
    """
    lengths = scores.lengths.long()[:, None]
    found = indices.long().sort(dim=1).values
    named = (found >= 0) & (found < lengths)
    outside = ((found < -1) | (found >= lengths)).any(dim=1)
    twice = ((found[:, 1:] == found[:, :-1]) & named[:, 1:]).any(dim=1)
    chosen = scores.values.gather(1, found.clamp(0, scores.values.shape[1] - 1))
    chosen = chosen.masked_fill(~named, float("-inf")).sort(dim=1, descending=True).values
    largest = scores.values.topk(count, dim=1).values
    return outside | twice | (chosen != largest).any(dim=1)


def other_rows(indices: Any, others: Any) -> Any:
    """(rows,) bool: rows with another set of indices."""
    return (indices.sort(dim=1).values != others.sort(dim=1).values).any(dim=1)


def _wrapper(
    probe: Session, torch: Any, top_k: TopK, *, scores: Scores, count: int, check: Check
) -> None:
    def again() -> Any:
        return select(probe, torch, top_k, scores=scores, count=count, what="ties")

    first = again()
    check.expect(
        first.shape == (len(scores.lengths), count),
        "numerics",
        f"indices are {first.dtype} {tuple(first.shape)}",
    )
    if check.verdict.status != "pass":
        return
    _expect_largest(torch, check, first, scores, count)
    repeats = int(probe.parameters["repeats"])
    _expect_same(torch, check, first, again, repeats=repeats)


def _expect_largest(torch: Any, check: Check, found: Any, scores: Scores, count: int, /) -> None:
    wrong = wrong_rows(torch, found, scores, count)
    rows = int(wrong.sum().item())
    check.measure["wrong_rows_count"] = rows
    check.expect(rows == 0, "numerics", f"in {rows} rows the chosen scores are not the largest")


def _expect_same(
    torch: Any, check: Check, first: Any, again: Callable[[], Any], *, repeats: int
) -> None:
    """The same set of indices each time; their order is measured alone."""
    varying = torch.zeros(len(first), dtype=torch.bool, device=first.device)
    in_order = True
    for _ in range(repeats):
        other = again()
        varying |= other_rows(first, other)
        in_order = in_order and bool((first == other).all().item())
    rows = int(varying.sum().item())
    check.measure["repeats_count"] = repeats
    check.measure["rows_count"] = len(first)
    check.measure["varying_rows_count"] = rows
    check.measure["order_repeats"] = in_order
    check.expect(
        rows == 0,
        "nondeterministic",
        f"{rows} of {len(first)} rows were selected otherwise in {repeats} equal calls",
    )


def _deterministic(
    probe: Session, torch: Any, top_k: TopK, *, scores: Scores, count: int, check: Check
) -> None:
    def again() -> Any:
        return select(
            probe,
            torch,
            top_k,
            scores=scores,
            count=count,
            what="deterministic",
            **{DETERMINISTIC_KEYWORD: True},
        )

    first = again()
    right = smallest_of_ties(torch, scores, count)
    wrong = int((first != right).any(dim=1).sum().item()) if first.shape == right.shape else -1
    check.measure["wrong_rows_count"] = wrong
    check.expect(
        wrong == 0, "numerics", f"{wrong} rows do not ascend, or a larger index was preferred"
    )
    same = all(torch.equal(first, again()) for _ in range(int(probe.parameters["repeats"])))
    check.expect(same, "nondeterministic", "equal calls gave other indices, or another order")


def smallest_of_ties(torch: Any, scores: Scores, count: int) -> Any:
    """(rows, count) int32: the largest scores, the first of equal ones, ascending, then -1."""
    columns = scores.values.shape[1]
    order = scores.values.argsort(dim=1, descending=True, stable=True)[:, :count]
    order = torch.where(order < scores.lengths[:, None], order, columns).sort(dim=1).values
    return torch.where(order < columns, order, -1).to(torch.int32)


def _core_part(probe: Session, torch: Any, device: Any) -> None:
    """Megatron Core's own function; what prevents it is measured."""
    try:
        function = mcore_topk.load(probe)
        fe_indexer.forward(probe)
    except Concluded as concluded:
        verdict = concluded.verdict
        if verdict.status in ("skip", "miss"):
            probe.measure(core_indexer_topk=f"{verdict.reason}: {verdict.detail}")
        else:
            with probe.check("Megatron Core, loaded"):
                raise
        return
    probe.measure(core_indexer_topk="driven")
    call = _core_call(probe, torch, device, function)
    repeats = int(probe.parameters["core_repeats"])
    with own_stream(torch, device):
        with probe.check("Megatron Core, repeated") as check:
            without = call(gradients=False)
            _expect_whole(torch, check, without)
            _expect_same(
                torch, check, without[0], lambda: call(gradients=False)[0], repeats=repeats
            )
        with probe.check("Megatron Core, without and with gradients") as check:
            without = call(gradients=False)
            _expect_same(torch, check, without[0], lambda: call(gradients=True)[0], repeats=repeats)


def _core_call(
    probe: Session, torch: Any, device: Any, function: Callable[..., Any]
) -> Callable[..., tuple[Any, Any]]:
    """A call of Megatron Core's function on one sequence with eight different keys."""
    model = layouts.MODELS[probe.parameters["model"]]
    rows = int(probe.parameters["sequence_rows"])
    groups = rows // RATIO
    random = torch.Generator().manual_seed(probe.seed)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random).to(torch.bfloat16).to(device)

    q, w = normal(rows, model.indexer_heads, model.indexer_dim), normal(rows, model.indexer_heads)
    few = normal(8, model.indexer_dim)
    k = few[torch.randint(0, 8, (groups,), generator=random).to(device)].contiguous()

    def whole(*numbers: int) -> Any:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    packing = {
        "cu_seqlens_q": whole(0, rows),
        "cu_seqlens_kv": whole(0, groups),
        "max_seqlen_q": rows,
        "max_seqlen_kv": groups,
    }

    def call(*, gradients: bool) -> tuple[Any, Any]:
        with (
            torch.set_grad_enabled(gradients),
            probe.tested("call", "indexer_topk"),
            poisoned_memory(torch),
        ):
            found, lengths = function(
                q.detach().requires_grad_(gradients),
                k,
                w.detach().requires_grad_(gradients),
                topk=min(model.top_k, groups),
                ratio=RATIO,
                indexer_softmax_scale=model.indexer_dim**-0.5,
                **packing,
            )
            wait(torch, device)
            return found, lengths

    return call


def _expect_whole(torch: Any, check: Check, found: tuple[Any, Any]) -> None:
    """Every row has as many indices as it sees groups, or as there are places, none twice."""
    indices, lengths = found
    rows, count = indices.shape
    seen = (torch.arange(rows, device=indices.device) + 1) // RATIO
    ordered = indices.long().sort(dim=1).values
    named = ordered >= 0
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & named[:, 1:]).any(dim=1)
    wrong = twice | (ordered >= seen[:, None]).any(dim=1)
    wrong |= (named.sum(dim=1) != seen.clamp_max(count)) | (lengths != named.sum(dim=1))
    number = int(wrong.sum().item())
    check.measure["wrong_rows_count"] = number
    check.expect(number == 0, "numerics", f"{number} rows have too few indices, or one twice")


def _controls(probe: Session, torch: Any, device: Any, count: int) -> None:
    """Plant faults into right selections."""
    probe.step("controls")
    scores = make_scores(probe, torch, device, "ties at the cut")
    right = smallest_of_ties(torch, scores, count)
    row = len(right) - 1  # the longest
    values = scores.values[row]
    chosen = right[row].long()
    least = int(values[chosen].argmin().item())
    taken = torch.zeros_like(values, dtype=torch.bool)
    taken[chosen] = True
    equal = (~taken & (values == values[chosen[least]])).nonzero()[0].item()
    smallest = values.argmin().item()

    def planted(place: int, content: Any) -> Any:
        wrong = right.clone()
        wrong[row, place] = content
        return wrong

    fine = not bool(wrong_rows(torch, right, scores, count).any().item())
    fine = fine and not bool(other_rows(right, right.flip(1)).any().item())
    other = planted(least, equal)
    harmless = not bool(wrong_rows(torch, other, scores, count).any().item())
    noticed = int(other_rows(right, other).sum().item())
    probe.control(
        "an equal score elsewhere",
        failed=fine and harmless and noticed == 1,
        detail=f"{noticed} rows differ",
    )
    for name, content in (("a smaller score", smallest), ("an index twice", chosen[least - 1])):
        wrong = int(wrong_rows(torch, planted(least, content), scores, count).sum().item())
        probe.control(name, failed=fine and wrong == 1, detail=f"{wrong} rows are wrong")
