"""Which candidates a traceback concerns, over moved files and renamed functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.errors import DataError
from patches.frames import Frame, frame_of, frames_in
from patches.overlap import Touch
from patches.survey import Looked
from tests.patches.repositories import CORE, Upstream
from tests.patches.test_life import candidate, survey

KERNELS = """
class SparseFunc:
    @staticmethod
    def forward(ctx, q):
        ctx.saved = q
        return q

    @staticmethod
    def backward(ctx, grad):
        saved = ctx.saved
        result = wrapper(saved, grad)
        scale = result * 2
        return scale


def launch(key):
    compiled = CACHE.get(key)
    if compiled is None:
        compiled = CACHE[key] = build(key)
    return compiled()


def call(q):
    return SparseFunc.apply(q)
"""

CALLER = (
    "from pkg.kernels import call, launch\n\n\ndef outer(q):\n    launch(q)\n    return call(q)\n"
)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "upstream")
    made.dev({"pkg/kernels.py": KERNELS, "pkg/caller.py": CALLER, "pkg/core.py": CORE}, "start")
    return made


def line(text: str, words: str) -> int:
    return text[: text.index(words)].count("\n") + 1


def look(upstream: Upstream, tmp_path: Path, base: str, frames: list[Frame], *heads: str) -> Looked:
    candidates = [candidate(number, head) for number, head in enumerate(heads, 1)]
    return survey(upstream, tmp_path / "cache", *candidates).look(frames, base)


def touches(looked: Looked) -> dict[str, list[tuple[str, str]]]:
    return {
        overlap.id: [(touch.relation, touch.function) for touch in overlap.touches]
        for overlap, _ in looked.found
    }


BACKWARD = Frame("pkg/kernels.py", line(KERNELS, "result = wrapper"))


def test_itself_its_file_its_callers_and_nothing(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    itself = upstream.request(1, {"pkg/kernels.py": KERNELS.replace("* 2", "* 4")}, base)
    beside = upstream.request(2, {"pkg/kernels.py": KERNELS.replace("is None", "is  None")}, base)
    caller = upstream.request(
        3,
        {"pkg/kernels.py": KERNELS.replace("SparseFunc.apply(q)", "SparseFunc.apply(q + 1)")},
        base,
    )
    nothing = upstream.request(4, {"pkg/core.py": CORE + "#\n"}, base)
    outer = upstream.request(
        5, {"pkg/caller.py": CALLER.replace("launch(q)", "launch(q, 1)")}, base
    )

    looked = look(upstream, tmp_path, base, [BACKWARD], itself, beside, caller, nothing, outer)

    assert [(p.path, p.function) for p in looked.places] == [
        ("pkg/kernels.py", "SparseFunc.backward")
    ]
    assert touches(looked) == {
        "core-1": [("changes", "SparseFunc.backward")],
        "core-2": [("file", "SparseFunc.backward")],
        "core-3": [("calls", "SparseFunc.backward")],
        "core-4": [],
        "core-5": [],
    }
    called = look(upstream, tmp_path, base, [Frame(None, None, "launch")], outer)
    (touch,) = called.found[0][0].touches
    assert (touch.relation, touch.callers) == ("calls", ["pkg/caller.py::outer"])


def test_a_moved_file_and_a_renamed_class_are_followed(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    renamed = KERNELS.replace("SparseFunc", "CSASparseFunc")
    fork = upstream.dev({"pkg/kernels.py": None, "pkg/deep/fused.py": renamed})
    head = upstream.request(1, {"pkg/deep/fused.py": renamed.replace("* 2", "* 4")}, fork)

    looked = look(upstream, tmp_path, base, [BACKWARD], head)

    (touch,) = looked.found[0][0].touches
    assert (touch.relation, touch.path, touch.function) == (
        "changes", "pkg/deep/fused.py", "CSASparseFunc.backward",
    )  # fmt: skip


def test_another_file_that_took_the_name_is_another_file(
    upstream: Upstream, tmp_path: Path
) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    other = "".join(f"def other_{n}(a, b, c):\n    return a * {n} + b - c\n\n\n" for n in range(9))
    fork = upstream.dev({"pkg/kernels.py": other, "pkg/fused.py": KERNELS})
    head = upstream.request(1, {"pkg/kernels.py": other + "def more():\n    pass\n"}, fork)

    looked = look(upstream, tmp_path, base, [BACKWARD], head)

    assert touches(looked) == {"core-1": []}


def test_a_candidate_that_moves_the_function(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(1, {"pkg/kernels.py": None, "pkg/fused.py": KERNELS + "#\n"}, base)

    looked = look(upstream, tmp_path, base, [BACKWARD], head)

    assert touches(looked) == {"core-1": [("moves", "SparseFunc.backward")]}


def test_an_unseen_head_is_judged_by_its_own_words(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    upstream.dev({"pkg/kernels.py": None, "pkg/deep/fused.py": KERNELS})
    says = candidate(1, "unknown", call_sites=["pkg/deep/fused.py::launch"])
    frames = [BACKWARD, Frame("kernels.py", line(KERNELS, "compiled = CACHE.get"))]

    looked = survey(upstream, tmp_path / "cache", says).look(frames, base[:12])

    found: list[Touch] = looked.found[0][0].touches
    assert [(t.relation, t.function, t.seen) for t in found] == [
        ("file", "SparseFunc.backward", False),
        ("changes", "launch", False),
    ]


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (Frame("elsewhere.py", 3), "no file of this component"),
        (Frame("pkg/core.py", 9999), "it has no line 9999"),
        (Frame("pkg/core.py", None, "nothing"), "it has no function nothing"),
        (Frame(None, None, "forward"), "2 functions are called so; give the file"),
        (Frame(None, None, "no_such"), "no such function"),
    ],
)
def test_frames_that_are_not_found_say_why(
    upstream: Upstream, tmp_path: Path, frame: Frame, why: str
) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    good = Frame("pkg/core.py", 4)

    looked = look(upstream, tmp_path, base, [frame, good])

    assert looked.places[0].why == why
    with pytest.raises(DataError, match="None of it is in"):
        look(upstream, tmp_path, base, [frame])


def test_a_revision_that_nobody_knows(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no known revision begins so"):
        look(upstream, tmp_path, "abcdef0", [Frame("pkg/core.py", 4)])


def test_broken_python_stops_nothing(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(
        1, {"pkg/kernels.py": KERNELS.replace("* 2", "* (2"), "pkg/deep.py": "(" * 5000}, base
    )

    looked = look(upstream, tmp_path, base, [BACKWARD], head)

    assert touches(looked)["core-1"][0][0] in ("changes", "file")


def test_tracebacks_as_people_paste_them() -> None:
    text = """
Traceback (most recent call last):
  File "/opt/x/megatron/core/csa.py", line 2483, in _forward_thd_cp
    call(
-> megatron/core/transformer/
deepseek_v4.py:315
-> csa.py:1860, _forward_thd_cp
-> kernels.py:641
_run_compiled_launch
-> kernels.py:641
"""
    assert [(f.path, f.line) for f in frames_in(text)] == [
        ("/opt/x/megatron/core/csa.py", 2483),
        ("megatron/core/transformer/deepseek_v4.py", 315),
        ("csa.py", 1860),
        ("kernels.py", 641),
    ]


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("a/b.py:12", Frame("a/b.py", 12)),
        ("a/b.py::C.f", Frame("a/b.py", None, "C.f")),
        ("a/b.py", Frame("a/b.py")),
        ("C.f", Frame(None, None, "C.f")),
        ("a b", None),
        ("", None),
    ],
)
def test_frames_of_a_command_line(text: str, frame: Frame | None) -> None:
    assert frame_of(text) == frame


OTHER = "".join(f"def other_{n}(a, b, c):\n    return a * {n} + b - c\n\n\n" for n in range(20))


def test_a_split_file_is_followed_to_another_folder(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.dev({"pkg/sub/old.py": KERNELS.replace("SparseFunc", "Split")})
    moved = KERNELS.replace("SparseFunc", "CSASplit")
    fork = upstream.dev({"pkg/sub/old.py": OTHER, "pkg/far/new.py": moved})
    head = upstream.request(1, {"pkg/far/new.py": moved.replace("* 2", "* 4")}, fork)

    looked = look(upstream, tmp_path, base, [Frame("pkg/sub/old.py", BACKWARD.line)], head)

    assert touches(looked) == {"core-1": [("changes", "CSASplit.backward")]}


def test_a_function_that_left_a_file_which_stayed(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.dev({"pkg/long.py": OTHER + KERNELS})
    rest = OTHER + KERNELS.replace(KERNELS[: KERNELS.index("def launch")], "")
    own = "# on its own now\n" + KERNELS[: KERNELS.index("def launch")]
    fork = upstream.dev({"pkg/long.py": rest, "pkg/deep/alone.py": own})
    head = upstream.request(1, {"pkg/deep/alone.py": own.replace("* 2", "* 4")}, fork)
    frame = Frame("pkg/long.py", line(OTHER + KERNELS, "result = wrapper"))

    looked = look(upstream, tmp_path, base, [frame], head)

    (touch,) = looked.found[0][0].touches
    assert (touch.relation, touch.path) == ("changes", "pkg/deep/alone.py")


def test_a_function_that_is_taken_away_is_changed(upstream: Upstream, tmp_path: Path) -> None:
    base = upstream.git("rev-parse", "refs/heads/dev")
    without = KERNELS[: KERNELS.index("def launch")] + KERNELS[KERNELS.index("def call") :]
    head = upstream.request(1, {"pkg/kernels.py": without}, base)

    looked = look(upstream, tmp_path, base, [Frame("pkg/kernels.py", None, "launch")], head)

    assert touches(looked) == {"core-1": [("changes", "launch")]}
