"""One rank's share of a microbatch, run through the fused kernels again and again.

Unlike the probes that compare with a reference, these want many calls: how often upstream compiles,
what it keeps, how long it takes, and whether it lives. Inputs are random but fit together, drawn on
the device once for a seed and cut to size; index tables come from Megatron Core itself and go into
the backward as they do in training.

A case is a text: `indices:M:R` builds the attention indices in mode M at compression ratio R,
`compaction:R` runs the compressor's input through the forward and backward of its autograd
function, and `backward:R` builds indices and lengths and runs the sparse attention backward on
them (all visible groups for ratio 128, chosen ones for ratio 4, the window alone for ratio 0).
`indexer:R` scores all groups and selects from them; its selection is not used further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_backward, fe_indexer, mcore_layout
from probes.adapters.shapes import expect_parameters, member
from probes.devices import wait
from probes.layouts import Layout, Model
from probes.session import Session

Outputs = dict[str, Any]
"""Tensors that a kernel wrote, by name."""
Kernel = tuple[str, Callable[[], Outputs]]

SEEN: Final = "scores"
"""The output that is minus infinity where a row may not look."""
SUMMED_BY_ATOMICS: Final = frozenset({"dkv", "d_sink"})
"""Outputs that may differ when the call is repeated, by how their sums round; no other may."""


@dataclass(frozen=True)
class Share:
    """One rank's rows of one microbatch."""

    layout: Layout
    rank: int

    @property
    def first_row(self) -> int:
        return self.layout.rank_rows(self.rank).start

    @property
    def rows(self) -> int:
        return self.layout.local_rows

    def width(self, ratio: int, top_k: int | None) -> int:
        """Columns for compressed rows, as callers ask for: what the longest sequence has."""
        if ratio <= 1:
            return 0
        widest = self.layout.max_seqlen // ratio
        return widest if top_k is None else min(top_k, widest)


@dataclass
class Replay:
    """The kernels under test and the inputs they get.

    Args:
        probe: gives the seed and loads the software.
        torch: the module.
        device: where it all happens.
        model: sizes.
        cases: what to load upstream functions for.
    """

    probe: Session
    torch: Any
    device: Any
    model: Model
    cases: Sequence[str]
    listed: tuple[int, int] = (0, 0)
    """Of the newest index table that a backward got: how many indices count, and the width."""
    _pool: dict[str, Any] = field(default_factory=dict)
    _maps: dict[tuple[Layout, int], tuple[Any, Any]] = field(default_factory=dict)
    _sums: dict[Layout, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {case.partition(":")[0] for case in self.cases}
        unknown = kinds - {"indices", "compaction", "backward", "indexer"}
        if unknown:
            raise ValueError(f"no such kind of case: {', '.join(sorted(unknown))}")
        self.probe.load("nvidia-cutlass-dsl")
        self.layout_module = mcore_layout.load(self.probe)
        self._build = member(self.layout_module, "build_attention_indices")
        expect_parameters("build_attention_indices", self._build, mcore_layout.BUILD_PARAMETERS)
        self._compact = (
            member(self.layout_module, "CompressorInputCompact") if "compaction" in kinds else None
        )
        self._backward = fe_backward.wrapper(self.probe) if "backward" in kinds else None

    def kernels(self, share: Share, case: str) -> Iterator[Kernel]:
        """The calls of one case, each with a name; call each before taking the next.

        Inputs are ready when a kernel is yielded, so its call is upstream's alone. A case for which
        the microbatch has nothing compressed to choose from has no calls.

        Raises:
            Concluded: the stack's upstream has no indexer for this GPU.
        """
        kind, _, rest = case.partition(":")
        if kind == "indices":
            mode, ratio = (int(number) for number in rest.split(":"))
            yield from self._indices(share, mode, ratio, {})
        elif kind == "compaction":
            yield from self._compaction(share, int(rest))
        elif kind == "indexer":
            yield from self._indexer(share, int(rest))
        else:
            table: Outputs = {}
            ratio = int(rest)
            yield from self._indices(share, 0 if ratio == 4 else 1, ratio, table)
            if table:
                yield from self._backwards(share, ratio, table)

    def run(self, kernel: Kernel, share: Share) -> Outputs:
        """Call one kernel as software under test, and wait for it."""
        name, call = kernel
        what = f"{name}, {share.layout.name}, rank {share.rank}"
        with self.probe.tested("call", what):
            outputs = call()
            wait(self.torch, self.device)
        return outputs

    def _indices(self, share: Share, mode: int, ratio: int, table: Outputs) -> Iterator[Kernel]:
        """Index tables of mode 0, 1 or 2: int32 (rows, window + width), lengths int32 (rows,).

        What comes out is put into `table` as well.
        """
        chosen, width = None, share.width(ratio, None)
        more: dict[str, Any] = {}
        if ratio > 1:
            cu_compressed, mapping = self._map(share.layout, ratio)
            more = {"cu_seqlens_compressed": cu_compressed, "seq_to_rank_row": mapping}
        if mode != 1:
            width = share.width(ratio, self.model.top_k)
            if not width:
                return
            chosen = self._chosen(share, ratio, width)
        cu, window = self.prefix_sums(share.layout), self.model.window

        def build() -> Outputs:
            made = self._build(
                cu,
                share.first_row,
                share.rows,
                window,
                window,
                ratio,
                width,
                chosen,
                for_indexer_loss=mode == 2,
                **more,
            )
            names = ("indices", "lengths", "rank_major")
            found = dict(zip(names, made, strict=True))
            table.update({name: tensor for name, tensor in found.items() if tensor is not None})
            return table

        yield f"indices mode {mode} ratio {ratio}", build

    def _compaction(self, share: Share, ratio: int) -> Iterator[Kernel]:
        compressed = layouts.compress(share.layout, ratio)
        overlap = compressed.overlap
        hidden = self._random("hidden", share.rows, self.model.hidden).requires_grad_()
        boundary = self._random("boundary", max(self.model.window, overlap), self.model.hidden)
        boundary.requires_grad_()
        gradient = self._random("gradient", compressed.capacity * ratio, self.model.hidden)
        cu = self.prefix_sums(share.layout)
        made: list[Any] = []

        def forward() -> Outputs:
            assert self._compact is not None
            made[:] = self._compact.apply(
                hidden,
                boundary,
                cu,
                share.first_row,
                ratio,
                overlap,
                compressed.capacity,
            )
            return {"compact": made[0].detach(), "ids": made[1]}

        def backward() -> Outputs:
            # The graph is kept, so that this can be called again on one forward.
            grads = self.torch.autograd.grad(
                made[0], (hidden, boundary), gradient, retain_graph=True
            )
            return {"d_hidden": grads[0], "d_boundary": grads[1]}

        yield f"compaction forward ratio {ratio}", forward
        yield f"compaction backward ratio {ratio}", backward

    def _backwards(self, share: Share, ratio: int, table: Outputs) -> Iterator[Kernel]:
        """The sparse attention backward on a built index table, with its lengths."""
        torch, model = self.torch, self.model
        rows, heads, dim = share.rows, model.heads, model.head_dim
        width = table["indices"].shape[1]
        self.listed = (int(table["lengths"].sum().item()), width)
        inputs = {
            "q": self._random("q", rows, heads, dim),
            "kv": self._random("kv", self.buffer_rows(share, ratio), dim),
            "out": self._random("out", rows, heads, dim),
            "dout": self._random("dout", rows, heads, dim),
            # No forward was run: weights are near 1 / width in place of summing up to 1, which
            # leaves every result finite and of an ordinary size.
            "lse": torch.full((rows, heads), math.log(width), device=self.device),
            "attn_sink": torch.zeros(heads, device=self.device),
            "topk_idxs": table["indices"],
            "softmax_scale": model.softmax_scale,
            "topk_length": table["lengths"],
        }

        def backward() -> Outputs:
            assert self._backward is not None
            found = self._backward(**inputs)
            return {name: found[name] for name in ("dq", "dkv", "d_sink")}

        yield f"sparse backward ratio {ratio}", backward

    def _indexer(self, share: Share, ratio: int) -> Iterator[Kernel]:
        """Scores float32 (rows, groups of the longest sequence), and the places of the largest."""
        forward, top_k = fe_indexer.forward(self.probe), fe_indexer.top_k(self.probe)
        model, columns = self.model, share.width(ratio, None)
        if not columns:
            return
        segments = layouts.indexer_segments(share.layout, ratio, share.rank)
        inputs = {
            "q": self._random("indexer q", share.rows, model.indexer_heads, model.indexer_dim),
            "k": self._random("indexer k", share.layout.total_rows // ratio, 1, model.indexer_dim),
            "w": self._random("indexer w", share.rows, model.indexer_heads),
            "ratio": ratio,
            "cu_seqlens_q": self._whole(segments.cu_queries),
            "cu_seqlens_k": self._whole(segments.cu_keys),
            "max_seqlen_q": share.layout.max_seqlen,
            "max_seqlen_k": columns,
        }
        if forward.takes_offsets:
            inputs[fe_indexer.OFFSETS_KEYWORD] = self._whole(segments.offsets)
        visible = self.visible(share, ratio).to(self.torch.int32).contiguous()
        made: Outputs = {}

        def score() -> Outputs:
            made[SEEN] = forward.function(**inputs)["scores"]
            return dict(made)

        def select() -> Outputs:
            with top_k.supported():
                found = top_k.function(
                    input_values=made[SEEN],
                    seq_lens=visible,
                    top_k=min(model.top_k, columns),
                    next_n=1,
                    return_val=False,
                )
            return {"selected": found["indices"]}

        yield f"indexer scores ratio {ratio}", score
        yield f"indexer top-k ratio {ratio}", select

    def visible(self, share: Share, ratio: int) -> Any:
        """(rows,) int64: how many groups of its sequence each row may see."""
        torch = self.torch
        cu = self.prefix_sums(share.layout).long()
        counts = self._map(share.layout, ratio)[0].diff()
        rows = share.first_row + torch.arange(share.rows, device=self.device)
        sequence = torch.searchsorted(cu[1:].contiguous(), rows, right=True)
        sequence = sequence.clamp_max(len(counts) - 1)
        seen = torch.minimum((rows - cu[sequence] + 1) // ratio, counts[sequence]).clamp_min(0)
        return torch.where(rows < share.layout.covered_rows, seen, 0)

    def buffer_rows(self, share: Share, ratio: int) -> int:
        """Rows of the buffer of keys: boundary, own rows, and all ranks' compressed ones."""
        compressed = 0
        if ratio > 1:
            compressed = share.layout.cp_size * layouts.compress(share.layout, ratio).capacity
        return self.model.window + share.rows + compressed

    def prefix_sums(self, layout: Layout) -> Any:
        """Of the lengths, int32 on the device."""
        if layout not in self._sums:
            self._sums[layout] = self._whole(layout.cu_seqlens)
        return self._sums[layout]

    def _map(self, layout: Layout, ratio: int) -> tuple[Any, Any]:
        if (layout, ratio) not in self._maps:
            made = layouts.compress(layout, ratio)
            sums, mapping = self._whole(made.cu_seqlens), self._whole(made.seq_to_rank_row)
            self._maps[layout, ratio] = (sums, mapping)
        return self._maps[layout, ratio]

    def _chosen(self, share: Share, ratio: int, width: int) -> Any:
        """For each row `width` random groups of those it may see, -1 where it sees none."""
        torch = self.torch
        visible = self.visible(share, ratio)[:, None]
        draws = self._uniform(share.rows, width)
        return torch.where(visible > 0, (draws * visible).int(), -1).to(torch.int32)

    def _whole(self, numbers: Sequence[int]) -> Any:
        return self.torch.tensor(numbers, dtype=self.torch.int32, device=self.device)

    def _generator(self, name: str) -> Any:
        # The name is mixed in by its letters: a hash of Python's differs between processes.
        mixed = self.probe.seed * 1_000_003 + sum(
            place * ord(letter) for place, letter in enumerate(name, 1)
        )
        return self.torch.Generator(self.device).manual_seed(mixed)

    def _uniform(self, rows: int, width: int) -> Any:
        return self._drawn("uniform", rows * width).view(rows, width)

    def _random(self, name: str, *shape: int) -> Any:
        """bfloat16 numbers in [-1, 1)."""
        return self._drawn(name, math.prod(shape)).view(shape)

    def _drawn(self, name: str, count: int) -> Any:
        """The first `count` of a row of random numbers, which is drawn anew when it is too short.

        In pieces, so that the first ones do not depend on how many there are.
        """
        torch = self.torch
        found = self._pool.get(name)
        if found is None or found.numel() < count:
            pieces = max(1, -(-count // _PIECE))
            random = self._generator(name)
            drawn = [
                torch.rand(_PIECE, generator=random, device=self.device) for _ in range(pieces)
            ]
            if name != "uniform":
                drawn = [(piece * 2 - 1).to(torch.bfloat16) for piece in drawn]
            found = self._pool[name] = torch.cat(drawn)
        return found[:count].detach()


_PIECE = 1 << 20


def finite(torch: Any, outputs: Outputs) -> list[str]:
    """Names of outputs with anything that is no number; one sum each, so this is cheap."""
    bad = []
    for name, tensor in outputs.items():
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float32).item()):
            bad.append(name)
    return bad


def checksum(torch: Any, outputs: Outputs) -> dict[str, int | float]:
    """A number for each output: of its bits and rows where these repeat, else its norm."""
    sums: dict[str, int | float] = {}
    for name, tensor in outputs.items():
        flat = tensor.reshape(tensor.shape[0], -1)
        if name in SUMMED_BY_ATOMICS:
            sums[name] = flat.norm(dtype=torch.float32).item()
            continue
        if flat.is_floating_point():
            flat = flat.view(torch.int16 if flat.element_size() == 2 else torch.int32)
        # Rows that change places change the sum, and so do columns next to each other.
        columns = flat.shape[1] // 2 * 2
        rows = flat.sum(1, dtype=torch.int64) + flat[:, :columns:2].sum(1, dtype=torch.int64)
        weights = torch.arange(1, len(rows) + 1, device=flat.device)
        sums[name] = int((rows * weights).sum().item())
    return sums


NORM_TOLERANCE = 2.0**-8
"""Of a norm, between two equal calls whose sums are made in another order: a few of the results
round to the other neighbour in bfloat16, each off by that much at most."""


def same(one: dict[str, int | float], other: dict[str, int | float]) -> list[str]:
    """Names of outputs whose checksums do not repeat."""
    differing = []
    for name, number in one.items():
        again = other.get(name)
        if again is None:
            differing.append(name)
        elif name not in SUMMED_BY_ATOMICS:
            if number != again:
                differing.append(name)
        elif not math.isclose(number, again, rel_tol=NORM_TOLERANCE):
            differing.append(name)
    return differing
