"""What the probe `streams` drives: upstream functions with two sets of inputs each.

A subject reads tensors that the probe gives it and nothing else, so that the probe can put other
inputs, just as valid, in their place, and see from the outputs which were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from probes import layouts
from probes.adapters import fe_backward, fe_indexer, mcore_layout
from probes.adapters.shapes import expect_parameters, member
from probes.lanes import Lanes
from probes.layouts import Layout
from probes.session import Session
from probes.sparse_gradients import arguments, closeness, draw, reference, same_bits

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """One upstream function, ready to be called."""

    inputs: Tensors
    decoys: Tensors
    """Other inputs of the same shapes and dtypes, as valid."""
    call: Callable[[Tensors], Tensors]
    """From input tensors to output tensors; queues work on the current stream and waits not."""
    loose: frozenset[str] = frozenset()
    """Outputs that are summed by atomics, and may differ by how sums round."""
    unordered: frozenset[str] = frozenset()
    """Outputs of which a row's order says nothing."""

    def differences(self, torch: Any, found: Mapping[str, Any], right: Mapping[str, Any]) -> str:
        """What differs between two sets of outputs, in words; nothing where nothing does."""
        texts = []
        for name in right:
            got, wanted = found[name], right[name]
            if name in self.unordered:
                got, wanted = got.sort(dim=-1).values, wanted.sort(dim=-1).values
            if name in self.loose:
                close = closeness(torch, _by_row(got), _by_row(wanted))
                if not close.within:
                    texts.append(f"{name}: {close}")
            elif not same_bits(torch, got, wanted):
                rows = (got != wanted).flatten(1).any(dim=1) if got.dim() > 1 else got != wanted
                texts.append(f"{name}: {int(rows.sum().item())} of {len(rows)} rows")
        return "; ".join(texts)


def _by_row(tensor: Any) -> Any:
    return tensor[:, None] if tensor.dim() > 1 else tensor[None, None]


@dataclass
class Maker:
    """Makes subjects, each from its upstream function.

    Raises, from every method:
        Concluded: the stack has no such function, or it did not import.
    """

    probe: Session
    torch: Any
    device: Any
    lanes: Lanes
    _layout_module: Any = field(default=None, init=False)

    def makers(self) -> dict[str, Callable[[], Subject]]:
        """By name of the function."""
        return {
            "sparse backward": self.backward,
            "indexer scores": self.scores,
            "indexer top-k": self.top_k,
            "attention indices": self.indices,
            "compaction": self.compaction,
        }

    def _random(self, shift: int) -> Any:
        return self.torch.Generator().manual_seed(self.probe.seed + shift)

    def backward(self) -> Subject:
        """`sparse_attention_backward_wrapper`, K = 128 with lengths."""
        function = fe_backward.wrapper(self.probe)
        model = layouts.MODELS[self.probe.parameters["model"]]
        made = []
        scale = model.softmax_scale
        for shift in (0, 1):
            inputs = draw(
                self.torch, self.device, case=f"{model.window}:length",
                seed=self.probe.seed + shift, rows=200, kv_rows=2000, heads=model.heads,
                model=model,
            )  # fmt: skip
            keywords = arguments(self.torch, inputs, reference(inputs))
            keywords.pop("softmax_scale")
            made.append(keywords)

        def call(tensors: Tensors) -> Tensors:
            answer = function(**tensors, softmax_scale=scale)
            return {name: answer[name] for name in ("dq", "dkv", "d_sink")}

        return Subject(made[0], made[1], call, loose=frozenset({"dkv", "d_sink"}))

    def scores(self) -> Subject:
        """`indexer_forward_wrapper`, one sequence from its start."""
        forward = fe_indexer.forward(self.probe)
        model = layouts.MODELS[self.probe.parameters["model"]]
        rows = int(self.probe.parameters["rows"])
        groups = rows // 4
        fixed = {"ratio": 4, "max_seqlen_q": rows, "max_seqlen_k": groups}

        def made(shift: int) -> Tensors:
            random = self._random(shift)
            heads, dim = model.indexer_heads, model.indexer_dim
            shapes = {"q": (rows, heads, dim), "k": (groups, 1, dim), "w": (rows, heads)}
            drawn = {name: self._normal(random, *shape) for name, shape in shapes.items()}
            # The sums are inputs as well: everything a call reads lies on one device.
            sums = {
                "cu_seqlens_q": self._whole((0, rows)),
                "cu_seqlens_k": self._whole((0, groups)),
            }
            return drawn | sums

        def call(tensors: Tensors) -> Tensors:
            return {"scores": forward.function(**tensors, **fixed)["scores"]}

        return Subject(made(0), made(1), call)

    def top_k(self) -> Subject:
        """`indexer_top_k_wrapper`, distinct scores, more of them in every row than are chosen."""
        top_k = fe_indexer.top_k(self.probe)
        chosen = layouts.MODELS[self.probe.parameters["model"]].top_k
        rows = int(self.probe.parameters["rows"])
        columns = 4 * chosen

        def made(shift: int) -> Tensors:
            random = self._random(shift)
            # A random order of distinct numbers for each row.
            values = self.torch.rand(rows, columns, generator=random).argsort(dim=1).float()
            lengths = self.torch.randint(2 * chosen, columns + 1, (rows,), generator=random)
            return {
                "input_values": values.to(self.device),
                "seq_lens": lengths.to(self.torch.int32).to(self.device),
            }

        def call(tensors: Tensors) -> Tensors:
            with top_k.supported():
                answer = top_k.function(**tensors, top_k=chosen, next_n=1, return_val=False)
            return {"indices": answer["indices"]}

        return Subject(made(0), made(1), call, unordered=frozenset({"indices"}))

    def indices(self) -> Subject:
        """`build_attention_indices`, all visible rows at ratio 128."""
        module = self._layouts()
        build = member(module, "build_attention_indices")
        expect_parameters("build_attention_indices", build, mcore_layout.BUILD_PARAMETERS)
        window = layouts.MODELS[self.probe.parameters["model"]].window
        real, decoy = self._two_layouts()
        ratio = 128
        width = real.max_seqlen // ratio

        def made(layout: Layout) -> Tensors:
            compressed = layouts.compress(layout, ratio)
            numbers = {
                "cu_seqlens": layout.cu_seqlens,
                "cu_compressed": compressed.cu_seqlens,
                "rank_rows": compressed.seq_to_rank_row,
            }
            return {name: self._whole(values) for name, values in numbers.items()}

        def call(tensors: Tensors) -> Tensors:
            indices, lengths, _ = build(
                tensors["cu_seqlens"], real.rank_rows(1).start, real.local_rows, window, window,
                ratio, width, None, cu_seqlens_compressed=tensors["cu_compressed"],
                seq_to_rank_row=tensors["rank_rows"], for_indexer_loss=False,
            )  # fmt: skip
            return {"indices": indices, "lengths": lengths}

        return Subject(made(real), made(decoy), call)

    def compaction(self) -> Subject:
        """Forward of `CompressorInputCompact` at ratio 4."""
        function = member(self._layouts(), "CompressorInputCompact")
        expect_parameters(
            "CompressorInputCompact", function.forward, mcore_layout.COMPACT_PARAMETERS
        )
        model = layouts.MODELS[self.probe.parameters["model"]]
        real, decoy = self._two_layouts()
        compressed = layouts.compress(real, 4)

        def made(layout: Layout, shift: int) -> Tensors:
            random = self._random(shift)
            return {
                "own": self._normal(random, layout.local_rows, 1, model.hidden),
                "boundary": self._normal(random, model.window, 1, model.hidden),
                "cu_seqlens": self._whole(layout.cu_seqlens),
            }

        def call(tensors: Tensors) -> Tensors:
            compact, groups = function.apply(
                tensors["own"], tensors["boundary"], tensors["cu_seqlens"],
                real.rank_rows(1).start, 4, compressed.overlap, compressed.capacity,
            )  # fmt: skip
            return {"compact": compact, "groups": groups}

        return Subject(made(real, 0), made(decoy, 1), call)

    def _layouts(self) -> Any:
        if self._layout_module is None:
            self._layout_module = mcore_layout.load(self.probe)
        return self._layout_module

    def _two_layouts(self) -> tuple[Layout, Layout]:
        """The same sequences in two orders."""
        rows = int(self.probe.parameters["rows"])
        layout = layouts.make("ordinary", seed=self.probe.seed, cp_size=4, local_rows=rows)
        lengths = layout.lengths[::-1]
        if lengths == layout.lengths:
            lengths = (layout.lengths[0] - 1, *layout.lengths[1:-1], layout.lengths[-1] + 1)
        return layout, replace(layout, lengths=lengths)

    def _normal(self, random: Any, *shape: int) -> Any:
        drawn = self.torch.randn(shape, generator=random)
        return drawn.to(self.torch.bfloat16).to(self.device)

    def _whole(self, values: tuple[int, ...]) -> Any:
        return self.torch.tensor(values, dtype=self.torch.int32, device=self.device)


def wrong_subjects(torch: Any, device: Any, lanes: Lanes) -> dict[str, tuple[str, Subject]]:
    """Functions of ours: a right one, and ones with the faults that streams allow.

    Returns:
        By name, the scenario that must notice it (none for the right one) and the subject.
    """
    real = {"x": torch.arange(4096, dtype=torch.float32, device=device).view(64, 64)}
    decoys = {"x": -1 - real["x"]}

    def out_for(tensors: Tensors) -> Any:
        return torch.empty_like(tensors["x"])

    def right(tensors: Tensors) -> Tensors:
        out = out_for(tensors)
        lanes.submit(lambda: out.copy_(tensors["x"]).mul_(2))
        return {"out": out}

    def on(stream: Any) -> Callable[[Tensors], Tensors]:
        def call(tensors: Tensors) -> Tensors:
            with lanes.use(stream):
                return right(tensors)

        return call

    def prepares_elsewhere(tensors: Tensors) -> Tensors:
        out = out_for(tensors)
        with lanes.use(lanes.another()):
            lanes.submit(lambda: out.fill_(float("-inf")))
        lanes.submit(lambda: out.copy_(tensors["x"]).mul_(2))
        return {"out": out}

    def subject(call: Callable[[Tensors], Tensors]) -> Subject:
        return Subject(real, decoys, call)

    return {
        "right": ("", subject(right)),
        "launches on the default stream": (
            "side stream, late inputs", subject(on(lanes.default)),
        ),
        "launches on a stream of its own": (
            "default stream, late inputs", subject(on(lanes.another())),
        ),
        "prepares its output on another stream": (
            "default stream, other streams busy", subject(prepares_elsewhere),
        ),
    }  # fmt: skip


def elapsed(started: float) -> float:
    """Seconds since `time.perf_counter()` was `started`, rounded for a measure."""
    return round(time.perf_counter() - started, 4)
