"""The probe on real groups of processes with stand-ins: a fault has its reason, and its rank."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import cp_exchange, cp_ranks, layouts, loopback
from probes.adapters.mcore_cp import HOMES
from tests.probes import cp_stand_in
from tests.probes.asking import ROOM, Asker, Reply, component

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

FEW = {
    "world": 2,
    "cp_sizes": [2],
    "layouts": ["spanning", "padding-rank"],
    "ratios": [4],
    "local_rows": 64,
    "group_timeout_s": 4,
    "step_limit_s": 8,
}


@pytest.fixture
def ask(asker: Asker) -> Callable[..., Reply]:
    def asked(
        fault: str = "",
        *,
        tree: dict[str, Any] | None = None,
        outside: bool = False,
        **parameters: Any,
    ) -> Reply:
        folder = asker.folder / "tree"
        cp_stand_in.write(folder, fault, **(tree or {}))
        asker.trees = {"megatron-core": {"path": str(folder), "revision": "f" * 40, "tree": None}}
        asker.components = {
            "torch": component("2", module="torch"),
            "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
        }
        chosen = {**FEW, **parameters}
        if outside:
            return asker.outside(ROOM, asker.request("cp-exchange", chosen), timeout=300)
        # Ranks are forks of this process, where a warning would be an error.
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            return asker.here("cp-exchange", **chosen)

    return asked


@pytest.mark.parametrize(("world", "sizes"), [(2, [2]), (4, [2, 4])])
def test_a_right_stand_in_passes(ask: Callable[..., Reply], world: int, sizes: list[int]) -> None:
    patient = {"group_timeout_s": 60, "step_limit_s": 90}
    newer = {"home": HOMES[0], "later": True} if world == 4 else {}
    reply = ask(
        tree=newer,
        world=world,
        cp_sizes=sizes,
        ratios=[4, 128],
        local_rows=160,
        outside=True,
        **patient,
    )
    assert reply.end["status"] == "pass", (reply.end, reply.log)
    names = [
        *(f"cp {size} any numbers" for size in sizes),
        *(
            f"cp {size} {name} ratio {ratio}"
            for size in sizes
            for ratio in (4, 128)
            for name in FEW["layouts"]
        ),
        *(f"cp {size} {name} top-k" for size in sizes for name in FEW["layouts"]),
    ]
    assert list(reply.parts) == names
    assert reply.measure["ranks_count"] == world
    assert reply.measure["mismatches_count"] == 0
    assert reply.measure["elements_compared_count"] > 100_000
    later = ", gather waited for later" if world == 4 else ""
    assert reply.measure["gathers"] == f"gather{later}"
    assert len(reply.controls) == 7
    assert all(reply.controls.values())
    assert reply.loaded["megatron-core"]["origin"] == "tree"


@pytest.mark.parametrize("fault", cp_stand_in.IN_RESULTS)
def test_every_wrong_result_is_found(ask: Callable[..., Reply], fault: str) -> None:
    reply = ask(fault, layouts=["spanning"])
    wrong = [part for part in reply.parts.values() if part["status"] != "pass"]
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics"), reply.log
    assert any(
        re.match(r"rank \d+: .*" + re.escape(cp_stand_in.IN_RESULTS[fault]), part["detail"])
        for part in wrong
    ), wrong
    assert all(reply.controls.values())


@pytest.mark.parametrize(
    ("fault", "reason", "said"),
    [
        ("dies", "exit:7", r"rank 1, during the boundary exchange, forward: ended with status 7"),
        ("aborts", "signal:SIGABRT", r"rank 1, during the boundary exchange, forward: died from"),
        ("hangs", "timeout", r"rank 1, during the boundary exchange, forward: silent for 8 s"),
        ("raises", "call:ValueError", r"rank 1, during the boundary exchange, forward: .*no rows"),
        ("everyone waits", "timeout", r"every rank waited in vain; rank \d+, during the boundary"),
    ],
)
def test_a_rank_that_goes_wrong_is_named(
    ask: Callable[..., Reply], fault: str, reason: str, said: str
) -> None:
    reply = ask(fault)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", reason), reply.log
    assert list(reply.parts) == ["cp 2 any numbers", "cp 2 spanning ratio 4"]
    part = reply.parts["cp 2 spanning ratio 4"]
    assert part["reason"] == reason
    assert re.match(said, part["detail"]), part["detail"]
    assert not multiprocessing.active_children()


def test_a_rank_of_four_that_dies_is_named_and_the_others_are_ended(
    ask: Callable[..., Reply],
) -> None:
    reply = ask("dies", world=4, cp_sizes=[2, 4])
    assert reply.end["reason"] == "exit:7"
    # Rank 1 of either group of two.
    assert re.match(r"rank [13], during", reply.end["detail"])
    assert not multiprocessing.active_children()


def test_ranks_that_never_find_each_other_are_the_machines(
    ask: Callable[..., Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    join = cp_ranks._join

    def late(torch: Any, crew: Any, rank: int, *more: Any) -> Any:
        if rank == 1:
            time.sleep(600)
        return join(torch, crew, rank, *more)

    monkeypatch.setattr(cp_ranks, "_join", late)
    monkeypatch.setattr(cp_exchange, "START_LIMIT_S", 8.0)
    reply = ask()
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "machine:no-condition")
    assert list(reply.parts) == ["the group"]
    assert "rank 1, during join the group: silent for" in reply.end["detail"]


def test_a_part_of_the_package_that_was_left_out_is_our_error(ask: Callable[..., Reply]) -> None:
    reply = ask("used a part")
    assert (reply.end["status"], reply.end["reason"]) == ("error", "probe:LeftOut")
    assert "fused_mla_rope_inplace was called" in reply.end["detail"]


def test_a_tree_without_the_functions_is_skipped(ask: Callable[..., Reply]) -> None:
    reply = ask(tree={"home": "megatron/core/other.py"})
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


@settings(max_examples=25)
@given(
    name=st.sampled_from(layouts.NAMES),
    seed=st.integers(0, 2**31),
    cp_size=st.sampled_from([2, 4, 5]),
    rows=st.sampled_from([128, 160, 300]),
    ratio=st.sampled_from([4, 128]),
)
def test_the_reference_agrees_with_plain_python(
    name: str, seed: int, cp_size: int, rows: int, ratio: int
) -> None:
    from probes import cp_cases
    from probes.references import one_rank

    class Probe:
        parameters = {"local_rows": rows // max(4, cp_size) * max(4, cp_size), "model": "tiny"}  # noqa: RUF012

    probe: Any = Probe()
    probe.seed = seed
    if probe.parameters["local_rows"] < ratio:
        return
    case = cp_cases.Case(cp_size, name, ratio)
    layout = cp_cases.layout_of(probe, case)
    batch = cp_cases.batch_of(probe, torch, torch.device("cpu"), case)
    hidden = 3
    x = torch.arange(1.0, layout.total_rows * hidden + 1).view(-1, 1, hidden)
    made = one_rank.forward(batch, x)
    compressed = layouts.compress(layout, ratio)
    tokens = [0, (ratio - 1) // 2, ratio - 1]
    shares: dict[tuple[int, int], int] = {}
    for rank, listed in enumerate(compressed.rank_groups):
        left = layout.rank_rows(rank).start
        boundary = [float(row * hidden + 1) for row in range(left - batch.boundary, left)]
        assert made.boundaries[rank][:, 0, 0].tolist() == (
            boundary if rank else [0.0] * batch.boundary
        )
        for slot, (sequence, group) in enumerate(listed):
            start = layout.cu_seqlens[sequence] + group * ratio
            right = [float((start + tokens[h]) * hidden + h + 1) for h in range(hidden)]
            row = rank * batch.capacity + slot
            assert made.gathered[row, 0].tolist() == right
            for h in range(hidden):
                place = (start + tokens[h], h)
                shares[place] = shares.get(place, 0) + row + 1
    # Every rank sends back the row's number for a gathered row, and one for each row it was sent.
    sent = torch.arange(1.0, cp_size * batch.capacity + 1)[:, None, None]
    arriving = one_rank.Gradients(
        torch.zeros_like(x),
        torch.ones(cp_size, batch.boundary, 1, hidden),
        sent.expand(cp_size, -1, 1, hidden),
    )
    gradient = one_rank.gradient(batch, x, arriving)[:, 0]
    for row in range(layout.total_rows):
        left_of = (row // layout.local_rows + 1) * layout.local_rows
        passed_on = int(left_of < layout.total_rows and row >= left_of - batch.boundary)
        for h in range(hidden):
            assert gradient[row, h] == cp_size * shares.get((row, h), 0) + passed_on


def test_a_sum_may_be_rounded_as_often_as_it_has_to_be() -> None:
    from probes import cp_sums

    parts = torch.randn((4, 30, 8), generator=torch.Generator().manual_seed(1)).bfloat16()
    rounded = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    assert cp_sums.judge(torch, rounded, parts) == ""
    assert "sums are wrong" in cp_sums.judge(torch, rounded * 1.1, parts)
    assert "float32" in cp_sums.judge(torch, rounded.float(), parts)
    rounded[3, 3] = float("nan")
    assert "1 of 240" in cp_sums.judge(torch, rounded, parts)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([4, 5, 6, 6], "in 1 one is there twice"),
        ([4, 5, 6, 12], "in 1 a group is none of theirs"),
        ([4, 5, 6, 8], "in 1 a group is none of theirs"),
        ([4, 5, 6, -1], "in 1 there are too many or too few"),
        ([3, 5, 6, 7], "in 1 a better one was left out"),
    ],
)
def test_every_wrong_choice_is_found(row: list[int], said: str) -> None:
    from probes import cp_top_k
    from probes.references.indexer import Scores

    values = torch.arange(12.0).masked_fill(torch.arange(12) > 7, float("-inf")).repeat(2, 1)
    scores = Scores(values, torch.ones_like(values))

    def judge(chosen: list[int]) -> str:
        whole = torch.tensor([[4, 5, 6, 7], chosen], dtype=torch.int32)
        return cp_top_k.judge(torch, whole, scores, width=4, terms=8)

    assert judge([7, 4, 6, 5]) == ""
    assert said in judge(row)
    assert judge(row).startswith("1 of 2 rows are wrong, the first 1")


WITHOUT = (
    ["unshare", "--net", "--"],
    ["unshare", "--user", "--map-current-user", "--net", "--"],
)


@pytest.mark.parametrize("prefix", WITHOUT, ids=["network", "network and user"])
def test_two_processes_can_talk_where_there_is_no_network(
    prefix: list[str], tmp_path: Path
) -> None:
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system makes no such namespace")
    script = tmp_path / "talk.py"
    script.write_text(
        "import socket, sys\n"
        f"sys.path.insert(0, {str(ROOM.parent)!r})\n"
        "from probes import loopback\n"
        "assert not loopback.is_up()\n"
        "took = loopback.ensure()\n"
        "assert loopback.is_up() and loopback.ensure() == 'up'\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "print(took)\n"
    )
    done = subprocess.run(
        [*prefix, sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {"brought up", "own namespace"}


def test_a_loopback_that_is_up_is_left_alone() -> None:
    if not loopback.is_up():
        pytest.skip("the loopback interface of this machine is down")
    assert loopback.ensure() == "up"
