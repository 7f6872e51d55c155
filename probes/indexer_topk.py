"""Does the indexer's selection find the largest scores of every row, however few there are?

Drives cuDNN Frontend's `DSA.indexer_top_k_wrapper` on SM90 by keyword, as Megatron Core's CSA
layers do: scores (rows, columns) in float32, minus infinity beyond a row's own length, lengths
(rows,) in int32, `next_n` 1, indices alone returned, (rows, K) in int32. A case is `columns:K`.

All scores of a row are distinct, so the set of indices is compared with torch's exactly; their
order is free. A row with fewer than K finite scores must have them all; places left over hold -1 or
an index of a score that is not finite, which callers drop. Any other content, an index beyond the
row's length or one that comes twice, is wrong. The output is poisoned first, by torch's own switch.
Scores are normal numbers, numbers so close that only the last digits differ, and numbers beyond the
range of half precision, with which the selection sorts roughly at first. Lengths are random, with
0, 1, K - 1, K, K + 1 and all columns among them; in one part no row has anything to see.

Each in a child process, since releases have read or written out of bounds there: rows that are
longer than K and have fewer than K finite scores; rows whose cut lies among numbers that half
precision takes for minus infinity; and, where a setting asks for it and the memory suffices, more
than 2^31 scores.

Controls: an index that is next in size instead of the last one chosen, one that comes twice, one
that is lost and one beyond the row must each be noticed by the same judgement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from probes import children
from probes.adapters import fe_indexer
from probes.children import Call
from probes.devices import poison_works, use_device
from probes.reasons import Verdict
from probes.selection import (
    Judged,
    Scores,
    cut_to_length,
    draw_lengths,
    draw_values,
    judge,
    select,
)
from probes.session import Check, Concluded, Session

PROBE: Final = {
    "id": "indexer-topk",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    "required": True,
    "group": "functional",
    "time_limit_s": 600,
    "parameters": {
        "quick": {
            "device": "cuda",
            "rows": 256,
            "cases": ["16384:512", "10001:512", "100:100", "65536:512"],
            "kinds": ["spread", "close", "large"],
            "few_cases": ["16384:512"],
            "huge": [],
            "child_limit_s": 90,
        },
        "thorough": {
            "device": "cuda",
            "rows": 1024,
            "cases": [
                "16384:512",
                "10001:512",
                "100:100",
                "517:512",
                "1000:512",
                "4096:512",
                "65536:512",
                "262144:512",
            ],
            "kinds": ["spread", "close", "large"],
            "few_cases": ["16384:512", "10001:512", "65536:512"],
            "huge": ["32896:65536"],
            "child_limit_s": 240,
        },
    },
}

PLACES: Final = 512
"""K where there are more than 2^31 scores."""
_SPARE_BYTES: Final = 4 << 30
_FACTOR: Final = 40_503
"""Odd, so that its multiples modulo a power of two run through all numbers."""


def run(probe: Session) -> None:
    """Distinct scores first, then what may crash, then the controls."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    top_k = fe_indexer.top_k(probe)
    probe.measure(poison_reaches_buffers=poison_works(torch, device))
    for case in probe.parameters["cases"]:
        columns, count = _sizes(str(case))
        for kind in probe.parameters["kinds"]:
            with probe.check(f"{columns} columns, {count} places, {kind}") as check:
                scores = _distinct(probe, torch, device, str(kind), case)
                found = select(
                    probe, torch, top_k, scores=scores, count=count, what=f"{case} {kind}"
                )
                _expect_right(check, judge(torch, found, scores, count))
                check.measure["rows_count"] = len(scores.lengths)
    columns, count = _sizes(str(probe.parameters["cases"][0]))
    with probe.check("nothing to see") as check:
        scores = _distinct(probe, torch, device, "spread", f"{columns}:{count}")
        scores.values.fill_(float("-inf"))
        scores.lengths.zero_()
        found = select(probe, torch, top_k, scores=scores, count=count, what="nothing to see")
        _expect_right(check, judge(torch, found, scores, count))
    _risky_parts(probe)
    _controls(probe, torch, device)


def _sizes(case: str) -> tuple[int, int]:
    columns, _, count = case.partition(":")
    return int(columns), int(count)


def _expect_right(check: Check, judged: Judged) -> None:
    check.measure["wrong_rows_count"] = judged.rows
    check.expect(judged.right, "numerics", str(judged))


def _distinct(probe: Session, torch: Any, device: Any, kind: str, case: str, /) -> Scores:
    columns, count = _sizes(case)
    rows = int(probe.parameters["rows"])
    random = torch.Generator().manual_seed(probe.seed)
    values = draw_values(torch, kind, rows=rows, columns=columns, random=random, device=device)
    lengths = draw_lengths(torch, rows=rows, columns=columns, count=count, random=random)
    return cut_to_length(torch, values, lengths)


def _risky_parts(probe: Session) -> None:
    """A child for each; all but the huge ones at the same time."""
    limit = float(probe.parameters["child_limit_s"])

    def call(kind: str, case: str) -> Call:
        arguments = {"kind": kind, "case": case}
        return Call("indexer-topk", "risky", arguments, name=f"{kind} {case}", limit_s=limit)

    calls = {
        f"{what}, {case}": call(kind, str(case))
        for kind, what in (("few", "few finite scores"), ("small", "cut below half precision"))
        for case in probe.parameters["few_cases"]
    }
    probe.step("children: few finite scores, cut below half precision")
    ended = dict(zip(calls, children.run_all(probe, calls.values(), at_once=3), strict=True))
    for size in probe.parameters["huge"]:
        name = f"more than 2^31 scores, {size}"
        ended[name] = children.run(probe, call("huge", str(size)))
    for name, end in ended.items():
        with probe.check(name) as check:
            facts = end.result_for(check)
            if facts is not None:
                check.measure["elements_count"] = facts["elements"]
                _expect_right(check, Judged(**facts["judged"]))


def risky(probe: Session, arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs in a child: select and judge.

    Raises:
        Concluded: there is too little memory, or the selection failed.
    """
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    top_k = fe_indexer.top_k(probe)
    kind, case = arguments["kind"], arguments["case"]
    make: Callable[..., tuple[Scores, int]] = {"few": _few, "small": _small, "huge": _huge}[kind]
    probe.step("make the scores")
    scores, count = make(probe, torch, device, case)
    probe.step("select")
    found = select(probe, torch, top_k, scores=scores, count=count, what=f"{kind} {case}")
    probe.step("judge")
    judged = judge(torch, found, scores, count)
    return {"elements": scores.values.numel(), "judged": judged.facts()}


def _few(probe: Session, torch: Any, device: Any, case: str, /) -> tuple[Scores, int]:
    """Rows that are longer than K and have fewer than K finite scores, in random places."""
    columns, count = _sizes(case)
    rows = int(probe.parameters["rows"])
    random = torch.Generator().manual_seed(probe.seed + 1)
    values = draw_values(torch, "spread", rows=rows, columns=columns, random=random, device=device)
    lengths = torch.randint(count + 1, columns + 1, (rows,), generator=random)
    lengths[-1] = columns
    finite = torch.tensor([0, 1, count // 2, count - 1]).repeat(rows)[:rows]
    order = torch.rand((rows, columns), generator=random).to(device)
    places = torch.arange(columns, device=device)
    order = order.masked_fill(places >= lengths[:, None].to(device), 2)
    order = order.argsort(dim=1, stable=True)
    # The first so many of a random order of the row's own columns keep their scores.
    kept = torch.zeros((rows, columns), dtype=torch.bool, device=device)
    kept.scatter_(1, order, places < finite[:, None].to(device))
    values.masked_fill_(~kept, float("-inf"))
    return cut_to_length(torch, values, lengths.to(torch.int32)), count


def _small(probe: Session, torch: Any, device: Any, case: str, /) -> tuple[Scores, int]:
    """Rows with fewer than K scores in the range of half precision, and many far below it."""
    columns, count = _sizes(case)
    rows = int(probe.parameters["rows"])
    random = torch.Generator().manual_seed(probe.seed + 2)
    values = draw_values(torch, "small", rows=rows, columns=columns, random=random, device=device)
    ordinary = draw_values(
        torch, "spread", rows=rows, columns=columns, random=random, device=device
    )
    number = torch.tensor([0, 1, count // 2, count - 1]).repeat(rows)[:rows].to(device)
    place = torch.rand((rows, columns), generator=random).to(device).argsort(dim=1, stable=True)
    values = torch.where(place < number[:, None], ordinary, values)
    lengths = torch.randint(count + 1, columns + 1, (rows,), generator=random)
    lengths[-1] = columns
    return cut_to_length(torch, values, lengths.to(torch.int32)), count


def _huge(probe: Session, torch: Any, device: Any, case: str, /) -> tuple[Scores, int]:
    """More scores than a 32-bit index can tell apart, made by arithmetic on the device.

    Raises:
        Concluded: the device lacks the memory, for the scores and twice as much in scratch.
        ValueError: the number of columns is no power of two, so scores would not be distinct.
    """
    rows, columns = _sizes(case)
    if columns & (columns - 1):
        raise ValueError(f"{columns} columns are no power of two")
    needed = 12 * rows * columns + _SPARE_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if free < needed:
            detail = f"{needed >> 30} GiB are needed, {free >> 30} GiB are free"
            raise Concluded(Verdict("miss", "machine:out-of-memory", detail))
    random = torch.Generator().manual_seed(probe.seed + 3)
    lengths = draw_lengths(torch, rows=rows, columns=columns, count=PLACES, random=random)
    lengths = lengths.to(device)
    values = torch.empty((rows, columns), dtype=torch.float32, device=device)
    places = torch.arange(columns, device=device)
    step = max(1, (1 << 26) // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        row = torch.arange(part.start, part.stop, device=device)[:, None]
        mixed = (places * _FACTOR + row * 9_973) % columns
        made = (mixed - columns // 2).float() / 64
        values[part] = made.masked_fill_(places >= lengths[part, None], float("-inf"))
    return Scores(values, lengths), min(PLACES, columns)


def _controls(probe: Session, torch: Any, device: Any) -> None:
    """Plant faults into right selections and judge them."""
    from probes.references.indexer import selection

    probe.step("controls")
    case = str(probe.parameters["cases"][0])
    _, count = _sizes(case)
    scores = _distinct(probe, torch, device, "spread", case)
    wanted = selection(scores.values, scores.lengths.long(), count).wanted
    # Wanted columns first; what follows them is cut off or replaced.
    order = torch.argsort((~wanted).to(torch.uint8), dim=1, stable=True)[:, :count]
    used = torch.arange(count, device=device) < wanted.sum(dim=1, keepdim=True)
    right = torch.where(used, order, -1).to(torch.int32)
    row = len(right) - 1  # the longest
    values = scores.values[row]
    following = values.argsort(descending=True)[count]
    last = values[right[row].long()].argmin()

    def planted(column: Any, content: Any) -> Any:
        wrong = right.clone()
        wrong[row, column] = content
        return wrong

    wrong = {
        "the next in size": planted(last, following),
        "an index twice": planted(0, right[row, 1]),
        "an index lost": planted(0, -1),
        "an index beyond the row": planted(0, len(values)),
    }
    fine = judge(torch, right, scores, count).right
    for name, indices in wrong.items():
        judged = judge(torch, indices, scores, count)
        # A judgement that also refuses the right selection has caught nothing.
        probe.control(name, failed=fine and not judged.right, detail=str(judged))
