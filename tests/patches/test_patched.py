"""Patched trees on the disk: made once, proven each time, by several at once, after a kill."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from patches.applying import Pin
from patches.patched import Patched, Patcher
from patches.remotes import Remote, SourceError
from probes.git_tree import tree_id
from tests.patches.repositories import CORE, Upstream, patch_pin, pin

CHANGED = CORE.replace("y = x + 1", "y = x + 10")


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "upstream")
    made.dev({"pkg/core.py": CORE, "run.sh": "#!/bin/sh\n"}, "start")
    return made


@pytest.fixture
def start(upstream: Upstream) -> str:
    return upstream.git("rev-parse", "refs/heads/dev")


@pytest.fixture
def request_1(upstream: Upstream, start: str) -> Pin:
    return pin(1, upstream.request(1, {"pkg/core.py": CHANGED}, start))


def patcher(upstream: Upstream, cache: Path) -> Patcher:
    return Patcher(Remote("core", str(upstream.folder)), cache, ["pkg"])


def test_made_once_and_proven_each_time(
    upstream: Upstream, tmp_path: Path, start: str, request_1: Pin
) -> None:
    maker = patcher(upstream, tmp_path / "cache")
    assert not maker.kept(start, [request_1])

    first = maker.make(start, [request_1])

    assert first.path is not None
    assert tree_id(first.path) == first.tree
    assert (first.path / "pkg" / "core.py").read_text() == CHANGED
    assert not (first.path / ".git").exists()
    assert maker.kept(start, [request_1])
    inode = first.path.stat().st_ino
    assert maker.make(start, [request_1]) == first
    assert first.path.stat().st_ino == inode, "reused"

    (first.path / "pkg" / "core.py").write_text("edited")
    again = maker.make(start, [request_1])
    assert again == first
    assert (first.path / "pkg" / "core.py").read_text() == CHANGED


def test_the_same_tree_by_another_way_is_the_same_folder(
    upstream: Upstream, tmp_path: Path, start: str, request_1: Pin
) -> None:
    maker = patcher(upstream, tmp_path / "cache")
    text = upstream.raw("diff", start, request_1.head)

    one = maker.make(start, [request_1])
    other = maker.make(start, [patch_pin(text)])

    assert one.path == other.path


def test_what_is_made_needs_no_source(
    upstream: Upstream, tmp_path: Path, start: str, request_1: Pin
) -> None:
    cache = tmp_path / "cache"
    first = patcher(upstream, cache).make(start, [request_1])
    shutil.rmtree(upstream.folder)

    elsewhere = Patcher(Remote("core", "https://unreachable.invalid/x"), cache, ["pkg"])

    assert elsewhere.kept(start, [request_1])
    assert elsewhere.make(start, [request_1]) == first


def test_a_conflict_is_remembered_and_a_missing_head_is_not(
    upstream: Upstream, tmp_path: Path, start: str
) -> None:
    clash = pin(2, upstream.request(2, {"pkg/core.py": CORE.replace("x + 1", "x + 2")}, start))
    base = upstream.dev({"pkg/core.py": CORE.replace("x + 1", "x + 3")})
    maker = patcher(upstream, tmp_path / "cache")

    assert maker.make(base, [clash]).applied[0].result == "conflict"
    assert maker.kept(base, [clash])
    late = pin(3, "f" * 40)
    answer = maker.make(base, [late])
    assert answer.applied[0].result == "unavailable"
    assert not maker.kept(base, [late])
    assert maker.make(base, [pin(4, "unknown")]).applied[0].result == "unavailable"


def test_an_unreachable_source(tmp_path: Path, start: str, request_1: Pin) -> None:
    maker = Patcher(Remote("core", "https://unreachable.invalid/x"), tmp_path / "cache", ["pkg"])

    with pytest.raises(SourceError, match="--source core=PATH") as caught:
        maker.make(start, [request_1])
    assert caught.value.reason == "source:unreachable"


def test_a_revision_that_does_not_exist(upstream: Upstream, tmp_path: Path, request_1: Pin) -> None:
    with pytest.raises(SourceError) as caught:
        patcher(upstream, tmp_path / "cache").make("e" * 40, [request_1])
    assert caught.value.reason == "source:no-such-revision"


def test_an_order_that_can_not_be(
    upstream: Upstream, tmp_path: Path, start: str, request_1: Pin
) -> None:
    upper = pin(2, upstream.request(2, {"pkg/core.py": CHANGED + "#\n"}, request_1.head))

    (applied,) = patcher(upstream, tmp_path / "cache").make(start, [upper, request_1]).applied

    assert (applied.result, applied.why) == (
        "unavailable", "r-2 stacks on r-1; put r-1 before it.",
    )  # fmt: skip


@pytest.mark.parametrize("damage", ["history", "lock", "objects", "half", "remembered"])
def test_what_a_kill_leaves_is_mended(
    upstream: Upstream, tmp_path: Path, start: str, request_1: Pin, damage: str
) -> None:
    cache = tmp_path / "cache"
    maker = patcher(upstream, cache)
    first = maker.make(start, [request_1])
    assert first.path is not None
    shutil.rmtree(first.path)
    (history,) = cache.glob("core-history-*.git")
    if damage == "history":
        (history / "HEAD").unlink()
        (history / "config").write_text("\x00[[")
    elif damage == "lock":
        (history / "config.lock").touch()
        (history / "refs" / "from").mkdir(parents=True, exist_ok=True)
        (history / "refs" / "from" / "x.lock").touch()
    elif damage == "objects":
        shutil.rmtree(history / "objects")
    elif damage == "half":
        half = first.path.with_name(first.path.name + ".half")
        half.mkdir()
        (half / "evil.py").write_text("x")
        first.path.with_name(first.path.name + ".index.lock").touch()
    else:
        (remembered,) = (cache / "applied").glob("*.json")
        remembered.write_text(remembered.read_text()[:50])

    assert maker.make(start, [request_1]) == first
    assert tree_id(first.path) == first.tree


_MAKE = """
import sys
from pathlib import Path
from patches.applying import Pin
from patches.patched import Patcher
from patches.remotes import Remote
upstream, cache, start, head = sys.argv[1:]
pin = Pin("r-1", head, component="core", number=1, target="dev")
made = Patcher(Remote("core", upstream), Path(cache), ["pkg"]).make(start, [pin])
print(made.tree)
"""


def make_elsewhere(upstream: Upstream, cache: Path, start: str, head: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(_MAKE),
            str(upstream.folder),
            str(cache),
            start,
            head,
        ],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_several_at_once(upstream: Upstream, tmp_path: Path, start: str, request_1: Pin) -> None:
    cache = tmp_path / "cache"
    running = [make_elsewhere(upstream, cache, start, request_1.head) for _ in range(4)]

    ended = [process.communicate(timeout=120) for process in running]

    assert all(process.returncode == 0 for process in running), ended
    assert len({out for out, _ in ended}) == 1
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("after", [0.35, 0.45, 0.6, 0.8])
def test_killed_at_any_moment_and_started_again(
    upstream: Upstream, tmp_path: Path, start: str, after: float
) -> None:
    many = {f"pkg/m{n}.py": f"a = {n}\n" * 50 for n in range(400)}
    head = upstream.request(1, dict(many), start)
    cache = tmp_path / "cache"
    process = make_elsewhere(upstream, cache, start, head)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    answer: Patched = patcher(upstream, cache).make(start, [pin(1, head)])

    assert answer.path is not None
    assert tree_id(answer.path) == answer.tree
    assert not list((cache / "worktrees").glob("*.half"))
