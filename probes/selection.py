"""Scores to select from, the call that selects, and the judgement of a selection.

What the probes of the indexer's top-k have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from probes.adapters.fe_indexer import TopK
from probes.devices import poisoned_memory, wait
from probes.session import Session

_CHUNK_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class Scores:
    """What to select from."""

    values: Any
    """(rows, columns) float32, minus infinity beyond a row's length, as the indexer leaves it."""
    lengths: Any
    """(rows,) int32: how many columns a row has."""


@dataclass(frozen=True)
class Judged:
    """What is wrong with a selection. Numbers of places, but for `form`."""

    outside: int
    """Neither an index below the row's length nor -1: a buffer's old content, for one."""
    twice: int
    """Indices that their row has already."""
    missing: int
    """Scores that are among the largest and were not chosen."""
    wrong: int
    """Finite scores that were chosen and are not among the largest."""
    rows: int
    """Rows with anything wrong."""
    first_row: int
    """The first of them, or -1."""
    form: str = ""
    """What is wrong with dtype or shape, if anything; then the numbers mean nothing."""

    @property
    def right(self) -> bool:
        return not self.form and not self.rows

    def __str__(self) -> str:
        return self.form or (
            f"{self.rows} rows are wrong, the first {self.first_row}: {self.missing} indices are "
            f"missing, {self.wrong} should not be there, {self.twice} are there twice, "
            f"{self.outside} are no index of their row"
        )

    def facts(self) -> dict[str, Any]:
        """As JSON; `Judged(**facts)` undoes it."""
        return asdict(self)


def judge(torch: Any, indices: Any, scores: Scores, count: int) -> Judged:
    """Judge the chosen places of each row; the scores of a row are distinct.

    A row must have its `count` largest finite scores, or all it has if they are fewer, each once
    and in any order. Places left over hold -1, or an index of a score in the row's length that is
    not finite: callers drop both.
    """
    from probes.references.indexer import selection

    rows, columns = scores.values.shape
    if indices.dtype != torch.int32 or indices.shape != (rows, count):
        return Judged(0, 0, 0, 0, 0, -1, f"indices are {indices.dtype} {tuple(indices.shape)}")
    totals = [0, 0, 0, 0]
    bad, first = 0, -1
    step = max(1, _CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        values, lengths = scores.values[part], scores.lengths[part].long()
        found = indices[part].long()
        named = (found >= 0) & (found < lengths[:, None])
        outside = ~named & (found != -1)
        times = torch.zeros((len(found), columns + 1), dtype=torch.int32, device=found.device)
        times.scatter_add_(1, torch.where(named, found, columns), torch.ones_like(indices[part]))
        times = times[:, :columns]
        wanted = selection(values, lengths, count).wanted
        inside = torch.arange(columns, device=found.device) < lengths[:, None]
        finite = inside & values.isfinite()
        by_row = [
            outside.sum(dim=1),
            (times - 1).clamp_min(0).sum(dim=1),
            (wanted & (times == 0)).sum(dim=1),
            (finite & ~wanted & (times > 0)).sum(dim=1),
        ]
        totals = [total + int(one.sum().item()) for total, one in zip(totals, by_row, strict=True)]
        some = torch.stack(by_row).sum(dim=0) > 0
        if first < 0 and bool(some.any().item()):
            first = start + int(some.nonzero()[0].item())
        bad += int(some.sum().item())
    outside_count, twice, missing, wrong = totals
    return Judged(outside_count, twice, missing, wrong, bad, first)


def select(
    probe: Session,
    torch: Any,
    top_k: TopK,
    *,
    scores: Scores,
    count: int,
    what: str,
    **more: Any,
) -> Any:
    """Call the selection the way Megatron Core does.

    Returns:
        (rows, count) int32.
    """
    with (
        probe.tested("call", f"indexer_top_k_wrapper, {what}"),
        top_k.supported(),
        poisoned_memory(torch),
    ):
        answer: Mapping[str, Any] = top_k.function(
            input_values=scores.values,
            seq_lens=scores.lengths,
            top_k=count,
            next_n=1,
            return_val=False,
            **more,
        )
        wait(torch, scores.values.device)
        return answer["indices"]


def draw_lengths(torch: Any, *, rows: int, columns: int, count: int, random: Any) -> Any:
    """(rows,) random lengths, those at which something changes among them; the last is the longest.

    Args:
        torch: the module.
        rows: how many.
        columns: the longest length.
        count: of places, so that a row of that length needs no choice.
        random: generator of the CPU.
    """
    lengths = torch.randint(0, columns + 1, (rows,), generator=random)
    edges = [0, 1, count - 1, count, count + 1, columns - 1, columns]
    edges = [min(max(0, edge), columns) for edge in edges][: rows - 1]
    lengths[: len(edges)] = torch.tensor(edges)
    lengths[-1] = columns
    return lengths.to(torch.int32)


def draw_values(torch: Any, kind: str, *, rows: int, columns: int, random: Any, device: Any) -> Any:
    """(rows, columns) float32 in which no row has a number twice.

    Args:
        torch: the module.
        kind: `spread`, normal numbers; `close`, numbers from 1 to 1.25; `large` and `small`, beyond
            what half precision can tell from plus and minus infinity.
        rows: how many.
        columns: how many.
        random: generator of the CPU.
        device: where the result lies.

    Raises:
        ValueError: no such kind.
    """
    drawn = torch.rand if kind != "spread" else torch.randn
    values = drawn((rows, columns), generator=random).to(device)
    if kind == "spread":
        return distinct(torch, values)
    order = values.argsort(dim=1, stable=True).float()
    match kind:
        case "close":
            return 1 + order / (4 * columns)
        case "large":
            return 100_000 + order
        case "small":
            return -100_000 - order
    raise ValueError(f"no such kind of scores: {kind}")


def distinct(torch: Any, values: Any) -> Any:
    """Float32 numbers moved as little as it takes, so that no row has one twice."""
    bits = values.view(torch.int32).long()
    # Integers in the order of the numbers; minus zero and zero are neighbours, and count as equal.
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ordered, order = keys.sort(dim=1, stable=True)
    places = torch.arange(values.shape[1], device=values.device)
    ordered = (ordered - places).cummax(dim=1).values + places
    ordered = torch.where(ordered < 0, ordered - 1, ordered)
    keys = torch.empty_like(keys).scatter_(1, order, ordered)
    bits = keys ^ ((keys >> 31) & 0x7FFFFFFF)
    return bits.to(torch.int32).view(torch.float32)


def cut_to_length(torch: Any, values: Any, lengths: Any) -> Scores:
    """Scores with minus infinity beyond each row's length."""
    lengths = lengths.to(values.device)
    inside = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
    return Scores(values.masked_fill_(~inside, float("-inf")), lengths)
