"""What a campaign tells: people, programs and CI services, whatever stands in the details."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped
from rich.console import Console

from matrix.errors import DataError, MatrixError
from matrix.keeping.ledger import entry_of
from matrix.keeping.records import Part
from matrix.planning.plan import cell_key
from matrix.reporting.events import (
    CampaignBegan,
    CampaignEnded,
    CellPlanned,
    JsonLines,
    RunEnded,
    read_event,
)
from matrix.reporting.junit import JUnitReport
from matrix.reporting.progress import Several
from matrix.reporting.reporter import Reporter
from tests.told import cell, plan_of, record_of
from tests.worlds import REPOSITORY, World, probe_source

HOSTILE = "]]>\x1b[2J\x9b31m<script>&\x00\x07\u202eabc\ufffe\uffff\u2028\r\nend"


def test_several_are_told_the_same_in_order() -> None:
    told: list[tuple[str, Any]] = []

    class Listener:
        def __init__(self, name: str) -> None:
            self.name = name

        def doing(self, text: str) -> None:
            told.append((self.name, text))

        def began(self, cell: Any, gpu: str | None) -> None:
            told.append((self.name, gpu))

        def ran(self, cell: Any, record: Any) -> None:
            told.append((self.name, record))

        def trouble(self, text: str) -> None:
            told.append((self.name, text))

    several = Several([Listener("a"), Listener("b")])
    record = record_of("sum")
    several.doing("x")
    several.began(cell("sum"), "0")
    several.ran(cell("sum"), record)
    several.trouble("y")

    assert told == [(name, what) for what in ("x", "0", record, "y") for name in ("a", "b")]


def test_events_carry_what_a_program_needs() -> None:
    out = io.StringIO()
    with JsonLines(out) as lines:
        lines.plan(plan_of(cell("sum"), cell("far", "not here", reason="machine:no-gpu", why="x")))
        lines.began(cell("sum"), "1")
        lines.ran(cell("sum"), record_of("sum", "fail", "numerics", detail="off"))
        lines.ended(["something"])

    events = [read_event(line) for line in out.getvalue().splitlines()]

    began, first, second, _, ran, ended = events
    assert isinstance(began, CampaignBegan)
    assert (began.to_run, began.not_here, began.machine, began.form) == (1, 1, "tiny", 1)
    assert isinstance(first, CellPlanned)
    assert isinstance(second, CellPlanned)
    assert second.reason == "machine:no-gpu"
    assert isinstance(ran, RunEnded)
    assert (ran.status, ran.reason, ran.gpu, ran.seconds) == ("fail", "numerics", "1", 1.5)
    assert ran.path == f"matrix/evidence/tiny/{ran.stack_id}/sum--{ran.run}.json"
    assert isinstance(ended, CampaignEnded)
    assert (ended.runs, ended.unfinished, ended.interrupted) == (1, ["something"], False)


def test_an_interrupted_campaign_says_so_in_its_last_event() -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), JsonLines(out):
        raise KeyboardInterrupt

    event = read_event(out.getvalue().splitlines()[-1])
    assert isinstance(event, CampaignEnded)
    assert event.interrupted


@given(text=st.text() | st.just(HOSTILE))
def test_no_text_breaks_a_line_of_json(text: str) -> None:
    out = io.StringIO()
    with JsonLines(out) as lines:
        lines.doing(text)
        lines.trouble(text)
        lines.ran(cell("sum"), record_of("sum", "fail", "numerics", detail=text[:1000]))
        lines.ended([text])

    assert out.getvalue().isascii()
    assert all(ord(char) >= 32 for char in out.getvalue().replace("\n", ""))
    assert len([read_event(line) for line in out.getvalue().splitlines()]) == 4


def test_the_campaign_goes_on_when_nobody_reads(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    out = os.fdopen(writing, "w")
    lines = JsonLines(out)
    lines.doing("first")
    os.close(reading)

    for _ in range(3):
        lines.doing("later")

    out.close()


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        ("pass", None, None),
        ("fail", "numerics", Failure),
        ("error", "probe:no-check", Error),
        ("void", "loaded:mismatch", Error),
        ("miss", "machine:killed", Skipped),
        ("skip", "upstream:absent", Skipped),
    ],
)
def test_each_status_has_its_element(
    tmp_path: Path, status: str, reason: str | None, kind: Any
) -> None:
    path = tmp_path / "report.xml"
    with JUnitReport(path, plan_of(cell("sum"))) as report:
        report.began(cell("sum"), "3")
        report.ran(cell("sum"), record_of("sum", status, reason))

    (suite,) = JUnitXml.fromfile(str(path))
    (case,) = suite
    assert [type(result) for result in case.result] == ([] if kind is None else [kind])
    assert case.time == 1.5
    assert (suite.failures, suite.errors, suite.skipped) == (
        int(kind is Failure), int(kind is Error), int(kind is Skipped),
    )  # fmt: skip
    assert '<property name="gpu" value="3"' in path.read_text()
    assert '<property name="evidence" value="matrix/evidence/tiny/' in path.read_text()


def test_a_report_of_several_sittings_is_full(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    before = entry_of(record_of("old", "fail", "numerics", detail="off"), "tiny/s/old.json")
    done = cell("old", "done")
    plan = plan_of(
        done,
        cell("never"),
        cell("far", "not here", reason="machine:no-gpu", why="needs a GPU"),
        newest={cell_key(done, "quick", None): before},
    )

    with JUnitReport(path, plan):
        pass

    (suite,) = JUnitXml.fromfile(str(path))
    old, never, far = suite
    assert isinstance(old.result[0], Failure)
    assert old.result[0].message == "numerics: off"
    assert "not run" in str(never.result[0].message)
    assert far.result[0].message == "machine:no-gpu: needs a GPU"
    assert (suite.tests, suite.failures, suite.skipped) == (3, 1, 2)


def test_repeated_runs_of_a_cell_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    with JUnitReport(path, plan_of(cell("sum"))) as report:
        for _ in range(3):
            report.ran(cell("sum"), record_of("sum"))

    assert [case.name for case in next(iter(JUnitXml.fromfile(str(path))))] == [
        "sum", "sum [2]", "sum [3]",
    ]  # fmt: skip


@given(text=st.text(max_size=1000) | st.just(HOSTILE))
def test_no_text_breaks_the_xml(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("junit") / "report.xml"
    part = Part(name=text or "x", status="fail", reason="numerics", detail=text)
    with JUnitReport(path, plan_of(cell("sum"))) as report:
        report.ran(cell("sum"), record_of("sum", "fail", "numerics", detail=text, parts=[part]))

    (suite,) = JUnitXml.fromfile(str(path))
    (case,) = suite
    assert case.is_failure
    assert "\x1b" not in path.read_text()


def test_a_report_that_can_not_be_there_is_said_at_once_and_one_that_got_lost_at_the_end(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match="folder that exists"):
        JUnitReport(tmp_path / "no" / "report.xml", plan_of())
    folder = tmp_path / "gone"
    folder.mkdir()
    report = JUnitReport(folder / "report.xml", plan_of())
    folder.rmdir()

    with pytest.raises(MatrixError, match="could not be written"):
        report.write()


def test_elsewhere_than_on_a_terminal_each_run_is_one_plain_line() -> None:
    out = io.StringIO()
    screen = Console(file=out, width=120, color_system=None, force_terminal=False)
    with Reporter(screen, 2) as reporter:
        reporter.doing(f"step {HOSTILE}")
        reporter.began(cell("sum"), "0")
        reporter.ran(cell("sum"), record_of("sum", "fail", "numerics", detail=HOSTILE * 10))
        reporter.trouble(HOSTILE)

    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("✖ fail numerics  good, sum, 1.5 s: ")
    assert "\x1b" not in out.getvalue()
    assert "\x9b" not in out.getvalue()


def test_a_terminal_shows_what_runs_where() -> None:
    out = io.StringIO()
    screen = Console(file=out, width=100, height=30, force_terminal=True, color_system=None)
    with Reporter(screen, 3, {("x", "y"): 5.0}) as reporter:
        reporter.doing(f"good: {HOSTILE}")
        reporter.ran(cell("first"), record_of("first"))
        reporter.began(cell("sum"), "GPU 1")
        reporter.began(cell("other"), None)
        screen.print(reporter._display())

    shown = out.getvalue()
    assert "1 of 3 cells" in shown
    assert "per cell" in shown
    assert "left" in shown
    assert "GPU 1" in shown
    assert "good, sum" in shown
    assert "no GPU" in shown
    assert "\x9b" not in shown
    assert "\x1b[2J" not in shown, "nothing of a detail acts on the terminal"


def failing(text: str) -> str:
    return probe_source(
        "bad", f"with probe.check('x') as check: check.expect(False, 'numerics', {text!r})"
    )


def test_a_campaign_tells_programs_and_people_apart(world: World, tmp_path: Path) -> None:
    world.probe("bad", failing(HOSTILE))
    world.campaign("fingerprint", "sum", "bad")
    report = tmp_path / "report.xml"

    done = subprocess.run(
        world.command("--json", "--junit", str(report)),
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip

    events = [read_event(line) for line in done.stdout.splitlines()]
    ran = [event for event in events if isinstance(event, RunEnded)]
    assert {(event.probe, event.status) for event in ran} == {
        ("fingerprint", "pass"), ("sum", "pass"), ("bad", "fail"),
    }  # fmt: skip
    for event in ran:
        assert json.loads((world.root / event.path).read_text())["run"]["id"] == event.run
    assert isinstance(events[0], CampaignBegan)
    assert isinstance(events[-1], CampaignEnded)
    assert "Combinations" in done.stderr
    (suite,) = JUnitXml.fromfile(str(report))
    assert (suite.tests, suite.failures) == (3, 1)
    assert {property_.name for property_ in suite.properties()} >= {"torch", "megatron-core"}

    again = world.run("--junit", str(report))

    assert again.status == 0
    (suite,) = JUnitXml.fromfile(str(report))
    assert (suite.tests, suite.failures) == (3, 1), "a resumed campaign reports all its cells"


def test_a_stopped_campaign_leaves_its_report_and_its_last_event(
    world: World, tmp_path: Path
) -> None:
    note = tmp_path / "started"
    world.probe("slow", probe_source("slow", f"import time\nopen({str(note)!r}, 'w').close()\n"
                                             "time.sleep(600)"))  # fmt: skip
    world.campaign("fingerprint", "slow")
    report = tmp_path / "report.xml"
    process = subprocess.Popen(
        world.command("--json", "--junit", str(report)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    try:
        from tests.running.test_cell_runs import wait_for

        wait_for(note.exists)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 1
    assert "stopped" in errors
    last = read_event(output.splitlines()[-1])
    assert isinstance(last, CampaignEnded)
    assert (last.interrupted, last.runs) == (True, 1)
    (suite,) = JUnitXml.fromfile(str(report))
    assert [case.is_skipped for case in suite] == [False, True]


def test_on_a_real_terminal_the_display_lives_and_leaves_nothing_behind(world: World) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        world.command(), stdout=slave, stderr=slave, stdin=slave, cwd=REPOSITORY,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )  # fmt: skip
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += os.read(master, 4096)
        except OSError:
            break
    os.close(master)

    assert process.wait(timeout=60) == 0
    text = shown.decode(errors="replace")
    assert "of 2 cells" in text
    assert text.count("✔ pass") >= 2
    assert text.rstrip().endswith(".") or "Not done" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor is shown again"
