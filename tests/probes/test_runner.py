"""The runner as a process: whatever a probe does, the host can tell what happened."""

from __future__ import annotations

import signal
import textwrap

import pytest

from tests.probes.asking import Asker, Reply

HEAD = """
from typing import Final
PROBE: Final = {"id": "tiny", "parameters": {"quick": {"width": 3}, "wide": {"width": 9}}}
def run(probe):
"""


def ask(asker: Asker, body: str, **parameters: object) -> Reply:
    room = asker.room_with(tiny=HEAD + textwrap.indent(textwrap.dedent(body), "    "))
    return asker.outside(room, asker.request("tiny", parameters))


def test_a_pass_has_start_steps_part_and_end(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        with probe.check("sum") as check:
            check.measure["width_columns"] = probe.parameters["width"]
            check.expect(1 + 1 == 2, "numerics", "arithmetic is broken")
        probe.measure(seed_number=probe.seed, ratio_number=float("nan"))
        probe.control("three", failed=1 + 1 != 3)
        """,
    )
    assert reply.returncode == 0
    assert [line["kind"] for line in reply.lines] == [
        "start", "step", "step", "part", "measure", "control", "end",
    ]  # fmt: skip
    assert reply.lines[0]["protocol"] == 1
    assert reply.lines[0]["probe"] == "tiny"
    assert reply.parts["sum"]["measure"].items() >= {"width_columns": 3}.items()
    assert reply.parts["sum"]["measure"]["part_s"] >= 0
    assert reply.measure == {"seed_number": 7, "ratio_number": "nan"}
    assert reply.controls == {"three": True}
    assert reply.end == {"kind": "end", "status": "pass", "reason": None, "detail": None}


def test_parameters_left_out_come_from_the_named_setting(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        with probe.check("width") as check:
            check.measure["width"] = probe.parameters["width"]
            check.expect(True, "numerics", "")
        """,
        setting="wide",
    )
    assert reply.parts["width"]["measure"]["width"] == 9


def test_a_broken_expectation_fails_with_its_reason(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        with probe.check("sum") as check:
            check.expect(True, "numerics", "unused")
            check.expect(1 + 1 == 3, "numerics", "found 2")
            check.expect(False, "nondeterministic", "only the first counts")
        """,
    )
    assert reply.end["status"] == "fail"
    assert reply.end["reason"] == "numerics"
    assert reply.end["detail"] == "found 2"


def test_raising_in_tested_code_is_a_fail_and_the_rest_still_runs(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        with probe.check("broken"):
            with probe.tested("call", "half"):
                1 / 0
        with probe.check("well") as check:
            check.expect(True, "numerics", "")
        """,
    )
    assert reply.parts["broken"]["reason"] == "call:ZeroDivisionError"
    assert reply.parts["broken"]["detail"] == "half: ZeroDivisionError: division by zero"
    assert reply.parts["well"]["status"] == "pass"
    assert reply.end["status"] == "fail"
    assert "ZeroDivisionError" in reply.log


def test_raising_outside_tested_code_is_our_error(asker: Asker) -> None:
    reply = ask(asker, "raise KeyError('width')")
    assert reply.end["status"] == "error"
    assert reply.end["reason"] == "probe:KeyError"


def test_a_probe_that_does_not_import_is_our_error(asker: Asker) -> None:
    room = asker.room_with(tiny="import no_such_module\n")
    reply = asker.outside(room, asker.request("tiny", {}))
    assert reply.end["reason"] == "probe:ModuleNotFoundError"


def test_a_sticky_cuda_error_ends_the_run(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        for name in ("first", "second"):
            with probe.check(name) as check, probe.tested("call", "kernel"):
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        """,
    )
    assert list(reply.parts) == ["first"]
    assert reply.end["reason"] == "cuda:illegal-address"


def test_a_cuda_error_of_one_launch_does_not_end_the_run(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        for name in ("first", "second"):
            with probe.check(name) as check, probe.tested("call", "kernel"):
                raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
        """,
    )
    assert list(reply.parts) == ["first", "second"]
    assert reply.end["reason"] == "cuda:invalid-value"


def test_no_part_is_an_error(asker: Asker) -> None:
    assert ask(asker, "pass").end["reason"] == "probe:no-check"


def test_a_part_without_an_expectation_is_an_error(asker: Asker) -> None:
    reply = ask(asker, "with probe.check('nothing'):\n    pass")
    assert reply.parts["nothing"]["reason"] == "probe:no-check"
    assert reply.end["status"] == "error"


@pytest.mark.parametrize(
    ("part", "status", "reason"),
    [
        ("check.expect(True, 'numerics', '')", "error", "control:not-caught"),
        ("check.expect(False, 'numerics', 'off')", "fail", "numerics"),
        ("raise KeyError('x')", "error", "control:not-caught"),
    ],
)
def test_a_control_that_is_not_caught(asker: Asker, part: str, status: str, reason: str) -> None:
    body = f"with probe.check('part') as check:\n    {part}\nprobe.control('wrong', failed=False)"
    end = ask(asker, body).end
    assert (end["status"], end["reason"]) == (status, reason)


def test_the_worst_part_decides(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        probe.part("a", status="pass")
        probe.part("b", status="skip", reason="upstream:absent")
        probe.part("c", status="miss", reason="machine:no-gpu", detail="none")
        probe.part("d", status="void", reason="loaded:mismatch")
        """,
    )
    assert (reply.end["status"], reply.end["reason"]) == ("void", "loaded:mismatch")


@pytest.mark.parametrize(("status", "reason"), [("pass", "numerics"), ("fail", None)])
def test_status_and_reason_must_go_together(asker: Asker, status: str, reason: str | None) -> None:
    reply = ask(asker, f"probe.part('a', status={status!r}, reason={reason!r})")
    assert reply.end["reason"] == "probe:ValueError"


def test_printing_at_every_level_never_reaches_the_answer(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        import ctypes, os, subprocess, sys
        libc = ctypes.CDLL(None)
        print("nonsense from Python")
        os.write(1, b"nonsense from a descriptor\\n")
        libc.puts(b"nonsense from C")
        libc.fflush(None)
        subprocess.run([sys.executable, "-c", "print('nonsense from a child')"], check=True)
        with probe.check("quiet") as check:
            check.expect(True, "numerics", "")
        """,
    )
    assert reply.end["status"] == "pass"
    assert "nonsense" not in reply.raw
    for source in ("Python", "a descriptor", "C", "a child"):
        assert f"nonsense from {source}" in reply.log


def test_a_crash_keeps_what_was_said_before_and_names_the_step(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        with probe.check("before") as check:
            check.expect(True, "numerics", "")
        probe.step("about to crash")
        import ctypes
        ctypes.string_at(0)
        """,
    )
    assert reply.returncode == -signal.SIGSEGV
    assert reply.parts["before"]["status"] == "pass"
    assert reply.lines[-1] == {"kind": "step", "name": "about to crash"}
    assert "Segmentation fault" in reply.log


def test_an_exit_of_the_tested_software_is_its_fault(asker: Asker) -> None:
    reply = ask(
        asker,
        "with probe.check('x'):\n    with probe.tested('call', 'x'):\n        raise SystemExit(3)",
    )
    assert reply.end["reason"] == "call:SystemExit"


@pytest.mark.parametrize(
    "request_text",
    ["", "[]", "{}", '{"protocol": 2, "probe": "tiny"}', '{"protocol": 1, "probe": "tiny"}', "{"],
)
def test_a_request_that_can_not_be_understood(asker: Asker, request_text: str) -> None:
    reply = asker.outside(asker.room_with(), request_text)
    assert reply.returncode == 0
    assert (reply.end["status"], reply.end["reason"]) == ("error", "protocol:garbled")


def test_the_project_is_not_on_the_import_path(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        import sys, importlib.util
        with probe.check("path") as check:
            check.expect(importlib.util.find_spec("answer") is None, "numerics", "room on path")
            check.expect(not any("project" in part for part in sys.path), "numerics", "path")
        """,
    )
    assert reply.end["status"] == "pass", reply.end


def test_no_path_of_this_machine_in_the_answer(asker: Asker) -> None:
    reply = ask(
        asker,
        """
        with probe.check("paths") as check:
            with probe.tested("call", "open"):
                open(probe.scratch / "missing" / "file.txt")
        with probe.check("own"):
            raise ValueError(f"{__file__}\\n" + "x " * 400)
        probe.measure(where=str(probe.environment / "lib"), other="/somewhere/else/file.so")
        """,
    )
    assert str(asker.folder) not in reply.raw
    assert "<scratch>/missing/file.txt" in reply.parts["paths"]["detail"]
    assert len(reply.parts["own"]["detail"]) <= 500
    assert "<project>/probes/tiny.py" in reply.parts["own"]["detail"]
    assert reply.measure["where"].startswith("<")
    assert reply.measure["other"] == "<path>/file.so"


def test_modules_that_were_imported_are_reported_as_loaded(asker: Asker) -> None:
    tree = asker.folder / "tree"
    (tree / "pretend").mkdir(parents=True)
    (tree / "pretend" / "__init__.py").write_text("__version__ = '1.2'\n", encoding="utf-8")
    asker.trees = {"pretend": {"path": str(tree), "revision": "abc", "tree": None}}
    asker.components = {
        "pretend": {"requested": "abc", "module": "pretend", "distribution": None},
        "other": {"requested": "1", "module": "json", "distribution": None},
        "never": {"requested": "1", "module": "never_imported", "distribution": None},
        "gone": {"requested": "1", "module": "gone", "absent": "source:unreachable"},
        "none": {"requested": "none", "module": "none"},
    }
    reply = ask(
        asker,
        f"""
        import sys
        sys.path.insert(0, {str(tree)!r})
        for name in probe.components:
            with probe.check(name) as check:
                probe.load(name)
                check.expect(True, "numerics", "")
        """,
    )
    assert reply.loaded["pretend"]["file"] == "pretend/__init__.py"
    assert reply.loaded["pretend"]["origin"] == "tree"
    assert reply.loaded["pretend"]["version"] == "abc"
    assert len(reply.loaded["pretend"]["sha256"]) == 64
    assert set(reply.loaded) == {"pretend", "other"}
    assert reply.parts["never"]["reason"] == "import:ModuleNotFoundError"
    assert (reply.parts["gone"]["status"], reply.parts["gone"]["reason"]) == (
        "miss",
        "source:unreachable",
    )
    assert (reply.parts["none"]["status"], reply.parts["none"]["reason"]) == (
        "skip",
        "upstream:absent",
    )
