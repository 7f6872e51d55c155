"""Evidence of other machines: taken whole and once, or refused whole, whatever an archive holds."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

import matrix.keeping.merging
from matrix.errors import MatrixError
from matrix.keeping.merging import merge
from matrix.keeping.records import Patch, Record, Run, StackFacts
from matrix.keeping.store import Store, lock_name
from matrix.rooms import Rooms
from matrix.stacks import stack_id
from tests.keeping.test_store import make_record
from tests.worlds import REPOSITORY

LOCK = "torch==2.0\n"
PATCH = b"--- a/x\n+++ b/x\n"


def record_of(machine: str = "other", number: int = 1, *, lock: str = LOCK) -> Record:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    plain = make_record()
    digest = hashlib.sha256(lock.encode()).hexdigest()
    return make_record(
        run=Run(id=f"20260101T000000Z-{number:08x}", started=start, seconds=1.5),
        machine=plain.machine.model_copy(update={"name": machine}),
        stack=plain.stack.model_copy(update={"lock": digest}),
    )


def keep(root: Path, *records: Record) -> Rooms:
    """A project folder with this evidence."""
    rooms = Rooms(root)
    store = Store(rooms)
    rooms.evidence.mkdir(parents=True, exist_ok=True)
    for record in records:
        assert record.stack.lock is not None
        store.add_lock(record.machine.name, record.stack.id, record.stack.lock, LOCK)
        store.add(record)
    return rooms


def files_of(rooms: Rooms) -> dict[str, bytes]:
    return {
        path.relative_to(rooms.evidence).as_posix(): path.read_bytes()
        for path in sorted(rooms.evidence.rglob("*"))
        if path.is_file()
    }


def packed(folder: Path, to: Path, *, name: str = "", mode: str = "w:gz") -> Path:
    with tarfile.open(to, mode) as archive:  # type: ignore[call-overload]
        archive.add(folder, arcname=name or ".")
    return to


@pytest.fixture
def here(tmp_path: Path) -> Rooms:
    return keep(tmp_path / "here", record_of("own"))


@pytest.fixture
def other(tmp_path: Path) -> Rooms:
    return keep(tmp_path / "other", record_of(number=1), record_of(number=2), record_of("third"))


SHAPES: dict[str, Callable[[Rooms, Path], Path]] = {
    "project folder": lambda other, _: other.root,
    "evidence folder": lambda other, _: other.evidence,
    "tgz of the project": lambda other, to: packed(other.root, to / "x.tgz", name="some/where"),
    "tar of the evidence": lambda other, to: packed(other.evidence, to / "x.tar", mode="w"),
    "tgz of matrix": lambda other, to: packed(other.root / "matrix", to / "x.tgz", name="matrix"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_evidence_comes_over_with_its_locks_and_once(
    here: Rooms, other: Rooms, tmp_path: Path, shape: str
) -> None:
    (other.root / "README").write_text("a project holds more than evidence\n")
    own = files_of(here)
    source = SHAPES[shape](other, tmp_path)

    merged = merge(here, [source])

    assert merged.problems == []
    assert merged.lines() == [
        "other: 2 records added, 0 were there already",
        "third: 1 records added, 0 were there already",
    ]
    assert files_of(here) == {**own, **files_of(other)}
    assert len(list(Store(here).records())) == 4

    again = merge(here, [source])

    assert (again.problems, again.added.total(), again.there.total()) == ([], 0, 3)
    assert list(here.cache.glob("merging-*")) == []


def test_what_a_killed_run_left_and_locks_that_no_run_names_stay_behind(
    here: Rooms, other: Rooms
) -> None:
    (folder,) = other.evidence.glob("third/*")
    (folder / ".sum--x.json.0000.tmp").write_text("half")
    (folder / lock_name("cd" * 32)).write_text("nobody's")

    assert merge(here, [other.root]).problems == []

    assert not any(".tmp" in name or "cdcd" in name for name in files_of(here))


def test_a_patch_file_comes_along_and_is_checked(here: Rooms, tmp_path: Path) -> None:
    head = "sha256:" + hashlib.sha256(PATCH).hexdigest()
    plain = record_of()
    record = record_of().model_copy(
        update={
            "stack": StackFacts(
                id=stack_id({}, (("mine", head),)),
                requested={}, resolved={}, loaded={}, lock=plain.stack.lock,
                patches=[Patch(id="mine", head=head, result="clean")],
            )
        }
    )  # fmt: skip
    other = keep(tmp_path / "patched", record)
    (problem,) = merge(here, [other.root]).problems
    assert "which is not there" in problem

    Store(other).add_patch("other", record.stack.id, head, PATCH)
    assert merge(here, [other.root]).problems == []
    (kept,) = here.evidence.glob("other/*/patch--*.patch")
    assert kept.read_bytes() == PATCH

    kept.unlink()
    (copy,) = other.evidence.glob("other/*/patch--*.patch")
    copy.write_bytes(b"other\n")
    (problem,) = merge(here, [other.root]).problems
    assert "is not the patch of run" in problem


def _changed(path: Path, change: Callable[[str], str]) -> None:
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))


def _one(rooms: Rooms, pattern: str = "third/*/*.json") -> Path:
    (path,) = rooms.evidence.glob(pattern)
    return path


def _renamed_run(rooms: Rooms) -> None:
    path = _one(rooms)
    path.rename(path.with_name("sum--20260101T000000Z-0000ffff.json"))


def _as_other_machine(rooms: Rooms) -> None:
    shutil.copytree(rooms.evidence / "third", rooms.evidence / "fourth")


#: name -> (what is done to the other project, what is said)
WRONG: dict[str, tuple[Callable[[Rooms], object], str]] = {
    "cut": (lambda r: _changed(_one(r), lambda text: text[:50]), "not valid JSON"),
    "edited": (lambda r: _changed(_one(r), lambda t: t.replace("1.5", "1.50")), "stand as a run"),
    "foreign reason": (
        lambda r: _changed(_one(r), lambda t: t.replace('"status": "pass"\n}', '"status": "x"\n}')),
        "not an evidence record",
    ),
    "another run's name": (_renamed_run, "belongs at"),
    "another machine's folder": (_as_other_machine, "belongs at"),
    "no lock": (lambda r: _one(r, "third/*/lock--*").unlink(), "is not there"),
    "another lock": (
        lambda r: _changed(_one(r, "third/*/lock--*"), lambda text: text + "evil==1\n"),
        "its hash differs",
    ),
    "link to a file": (
        lambda r: (_one(r).unlink(), (_one(r, "third/*") / "sum.json").symlink_to("/etc/passwd")),
        "symbolic link",
    ),
    "link to a folder": (
        lambda r: (r.evidence / "linked").symlink_to(r.evidence / "third"), "symbolic link"),
    "foreign file": (lambda r: (r.evidence / "third" / "x.py").write_text("x"), "is no file of"),
    "deep folder": (
        lambda r: (_one(r, "third/*") / "deep").mkdir(), "a folder where only files belong"),
    "pipe": (
        lambda r: os.mkfifo(
            _one(r, "third/*") / "sum--20260101T000000Z-0000ffff.json"), "no ordinary file"),
    "absurd size": (
        lambda r: (_one(r, "third/*") / lock_name("cd" * 32)).write_bytes(b"x" * (2**22 + 1)),
        "no run writes more",
    ),
    "empty": (lambda r: shutil.rmtree(r.evidence), "no evidence in it"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("as_archive", [False, True])
def test_a_source_with_anything_wrong_is_refused_whole(
    here: Rooms, other: Rooms, tmp_path: Path, wrong: str, *, as_archive: bool
) -> None:
    change, said = WRONG[wrong]
    change(other)
    before = files_of(here)
    source = packed(other.root, tmp_path / "x.tgz") if as_archive else other.root

    merged = merge(here, [source])

    (problem,) = merged.problems
    assert "\n" not in problem
    assert problem.startswith(str(source))
    assert said in problem or (as_archive and "a link, a device or the like" in problem)
    assert files_of(here) == before
    assert merged.added.total() == 0


def member(name: str, content: bytes = b"", **facts: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in facts.items():
        setattr(info, key, value)
    return info, content


def good_members(prefix: str = "matrix/evidence/") -> list[tuple[tarfile.TarInfo, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(keep(Path(folder), record_of()))
    return [member(prefix + name, content) for name, content in files.items()]


RUN = "matrix/evidence/other/" + "0" * 12 + "/sum--20260101T000000Z-0000ffff.json"
HOSTILE = {
    "climbs": ([member("../x")], "leads out"),
    "climbs inside": ([member("matrix/evidence/../../x")], "leads out"),
    "absolute": ([member("/etc/cron.d/x")], "leads out"),
    "symbolic link": ([member(RUN, type=tarfile.SYMTYPE, linkname="/etc/passwd")], "a link"),
    "hard link": ([member(RUN, type=tarfile.LNKTYPE, linkname="/etc/passwd")], "a link"),
    "link above": ([member("matrix", type=tarfile.SYMTYPE, linkname="/etc")], "a link"),
    "device": ([member(RUN, type=tarfile.CHRTYPE, devmajor=1, devminor=5)], "a link, a device"),
    "pipe": ([member(RUN, type=tarfile.FIFOTYPE)], "a link, a device"),
    "twice": (good_members()[:1], "twice"),
    "two projects": (good_members("copy/matrix/evidence/"), "several evidence folders"),
    "huge": ([member(RUN, b"x" * (2**22 + 1))], "no run writes more"),
    "escape sequences": ([member("matrix/evidence/\x1b[2J\n/" + "0" * 12 + "/x")], "is no file"),
    "not UTF-8": ([member("matrix/evidence/\udcff/x/y")], "is no file"),
    "a name of 300 signs": ([member("matrix/evidence/" + "m" * 300 + "/x/y")], "is no file"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("first", [False, True])
def test_a_hostile_archive_is_refused_whole(
    here: Rooms, tmp_path: Path, hostile: str, *, first: bool
) -> None:
    evil, said = HOSTILE[hostile]
    members = [*evil, *good_members()] if first else [*good_members(), *evil]
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w", errors="surrogateescape") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    before = files_of(here)

    (problem,) = merge(here, [path]).problems

    assert said in problem
    assert "\x1b" not in problem
    assert "\n" not in problem
    assert files_of(here) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["evil.tar", "here"]


def _bomb() -> bytes:
    """A header that claims 8 GiB of file name, which a library would read into memory."""
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 8 * 2**30 - 1
    return info.tobuf(format=tarfile.GNU_FORMAT)


NO_ARCHIVES = {
    "text": b"hello\n",
    "empty": b"",
    "cut gzip": gzip.compress(os.urandom(5000))[:2000],
    "gzip of nothing": gzip.compress(b""),
    "gzip of text": gzip.compress(b"hello" * 1000),
    "header bomb": _bomb() + b"x" * 512,
    "packed header bomb": gzip.compress(_bomb() + b"x" * 512),
}


@pytest.mark.parametrize("name", NO_ARCHIVES)
def test_what_is_no_archive_is_said_on_one_line(here: Rooms, tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.tgz"
    path.write_bytes(NO_ARCHIVES[name])

    (problem,) = merge(here, [path]).problems

    assert "\n" not in problem
    assert problem.startswith(str(path))


@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_archive_is_refused_or_harmless(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        other = keep(root / "other", record_of())
        content = bytearray(packed(other.root, root / "x.tar", mode="w").read_bytes())
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        (root / "x.tar").write_bytes(bytes(content))
        here = keep(root / "here", record_of("own"))
        before = files_of(here)

        merged = merge(here, [root / "x.tar"])

        assert files_of(here) == (before if merged.problems else {**before, **files_of(other)})
        assert sorted(entry.name for entry in root.iterdir()) == ["here", "other", "x.tar"]


def test_one_record_and_one_machine_are_no_evidence_folder(here: Rooms, other: Rooms) -> None:
    record = next(other.evidence.rglob("*--*.json"))

    assert "is no whole .tar, .tgz or .tar.gz" in merge(here, [record]).problems[0]
    assert "the folder that holds those of all" in merge(here, [record.parents[1]]).problems[0]


@pytest.mark.parametrize("kept", ["a header's start", "half", "all but the end"])
def test_an_archive_that_was_cut_is_refused(here: Rooms, tmp_path: Path, kept: str) -> None:
    members = good_members()
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
        end = archive.offset
    length = {"a header's start": 700, "half": end // 2, "all but the end": end}[kept]
    path.write_bytes(path.read_bytes()[:length])

    (problem,) = merge(here, [path]).problems

    assert "cut" in problem or "is no whole .tar" in problem
    assert not (here.evidence / "other").exists()


def test_another_content_under_a_name_is_refused_and_never_overwrites(
    here: Rooms, tmp_path: Path
) -> None:
    mine = record_of("own").model_copy(update={"measure": {"x": 1}})
    other = keep(tmp_path / "other", mine, record_of("new"))
    before = files_of(here)

    (problem,) = merge(here, [other.root]).problems

    assert "with another content" in problem
    assert files_of(here) == before


def test_a_link_in_this_projects_evidence_is_not_written_through(
    here: Rooms, other: Rooms, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (here.evidence / "third").symlink_to(outside)

    merged = merge(here, [other.root])

    assert any("symbolic link" in problem for problem in merged.problems)
    assert list(outside.iterdir()) == []
    assert not (here.evidence / "other").exists()


def test_sources_that_contradict_each_other_are_both_refused_and_others_taken(
    here: Rooms, tmp_path: Path
) -> None:
    one = keep(tmp_path / "one", record_of("same"))
    changed = record_of("same").model_copy(update={"measure": {"x": 1}})
    two = keep(tmp_path / "two", changed)
    fine = keep(tmp_path / "fine", record_of("fine"))

    merged = merge(here, [one.root, two.root, fine.root])

    assert len(merged.problems) == 2
    assert all("different contents" in problem for problem in merged.problems)
    assert merged.lines() == ["fine: 1 records added, 0 were there already"]


@pytest.mark.parametrize("failure", [MatrixError("full"), KeyboardInterrupt()])
def test_what_could_not_be_added_whole_is_taken_back(
    here: Rooms, other: Rooms, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    real = matrix.keeping.merging.write_whole
    before = files_of(here)

    def fails_late(path: Path, text: bytes) -> None:
        if path.parts[-3] == "third" and path.suffix == ".json":
            raise failure
        real(path, text)

    monkeypatch.setattr(matrix.keeping.merging, "write_whole", fails_late)
    with pytest.raises(type(failure)):
        merge(here, [other.root])

    assert files_of(here) == before


@given(
    shares=st.lists(st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 5))), max_size=4),
    data=st.data(),
)
@settings(max_examples=15)
def test_merging_is_idempotent_and_its_order_makes_no_difference(
    shares: list[set[tuple[str, int]]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(shares))))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sources = []
        for number, share in enumerate(shares):
            records = [record_of(machine, run) for machine, run in sorted(share)]
            sources.append(keep(root / f"s{number}", *records).evidence)
        filled = [source for source, share in zip(sources, shares, strict=True) if share]
        together, one_by_one = keep(root / "t"), keep(root / "o")

        merged = merge(together, filled)
        for place in order:
            if shares[place]:
                assert merge(one_by_one, [sources[place]]).problems == []
        again = merge(together, list(reversed(filled)))

        assert merged.problems == []
        assert files_of(together) == files_of(one_by_one)
        assert merged.added.total() == len(set().union(*shares))
        assert again.added.total() == 0


def command(rooms: Rooms, *sources: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "matrix", "--root", str(rooms.root), "merge", *map(str, sources)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_command_says_what_was_added_and_ends_with_2_for_a_problem(
    here: Rooms, other: Rooms, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()

    done = command(here, other.root, bad)

    assert done.returncode == 2
    assert "other: 2 records added" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {bad}: there is no evidence in it")
    done = command(here, other.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 were there already" in done.stdout


def test_this_projects_own_evidence_would_be_taken(tmp_path: Path) -> None:
    here = Rooms(tmp_path / "fresh")

    merged = merge(here, [REPOSITORY])

    assert merged.problems == []
    assert files_of(here) == files_of(Rooms(REPOSITORY))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path / "project")
    rooms.evidence.mkdir(parents=True)
    os.mkfifo(tmp_path / "evidence.tar")

    merged = merge(rooms, [tmp_path / "evidence.tar", tmp_path / "nowhere.tar"])

    assert "neither a folder nor a regular file" in merged.problems[0]
    assert "there is no such file or folder" in merged.problems[1]


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path / "project")
    rooms.evidence.mkdir(parents=True)
    rooms.cache.write_text("in the way")

    with pytest.raises(MatrixError, match="can't be written"):
        merge(rooms, [tmp_path])


def test_what_a_killed_merge_left_is_swept_and_what_a_living_one_has_is_not(
    here: Rooms, other: Rooms
) -> None:
    killed, living, young = (here.cache / f"merging-{name}" for name in ("a", "b", "c"))
    for folder in (killed, living, young):
        folder.mkdir(parents=True)
    an_hour_ago = time.time() - 3600
    with FileLock(living / "lock"):
        for folder in (killed, living):
            os.utime(folder, (an_hour_ago, an_hour_ago))

        assert merge(here, [other.root]).problems == []

    assert sorted(here.cache.glob("merging-*")) == [living, young]


def test_many_merges_at_once_take_nothing_from_each_other(here: Rooms, other: Rooms) -> None:
    with ThreadPoolExecutor(4) as pool:
        merged = list(pool.map(lambda _: merge(here, [other.root]), range(40)))

    assert [problem for each in merged for problem in each.problems] == []
    assert sum(each.added.total() for each in merged) == 3
    assert list(here.cache.glob("merging-*")) == []
