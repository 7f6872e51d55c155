"""Limits that a real process of a tiny world runs into."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.running import isolation
from matrix.running.isolation import Usage, excess, network, usage
from tests.running.test_engine import carry_out
from tests.worlds import World, probe_source

NETWORK = """
import socket
with probe.check('outside') as check:
    names = [name for _, name in socket.if_nameindex()]
    connection = socket.socket()
    connection.settimeout(5)
    try:
        connection.connect((probe.parameters['address'], probe.parameters['port']))
        reached = True
    except OSError:
        reached = False
    probe.measure(reached=reached, interfaces=', '.join(names))
    check.expect(True, 'numerics', '')
"""


def test_a_probe_reaches_no_network_where_that_can_be(world: World) -> None:
    if network().reach == "host":
        pytest.skip("this system lets nobody make a namespace without a network")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        source = probe_source("call", NETWORK).replace(
            "{'quick': {}}",
            f"{{'quick': {{'address': '127.0.0.1', 'port': {server.getsockname()[1]}}}}}",
        )
        world.probe("call", source)
        world.campaign("fingerprint", "call")

        world.run()

    record = world.record("call")
    assert record["status"] == "pass", record["detail"]
    assert record["measure"]["reached"] is False
    assert record["machine"]["network"] == "none"


def test_where_nothing_can_be_taken_away_the_record_says_so(world: World, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (tools / "unshare").chmod(0o755)

    world.run(PATH=f"{tools}:{os.environ['PATH']}")

    assert {record["machine"]["network"] for record in world.records()} == {"host"}
    assert {record["status"] for record in world.records()} == {"pass"}


def test_who_takes_too_much_memory_is_ended_and_the_machine_is_to_blame(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it is held by a child: what a probe starts counts as the probe's."""
    body = """
    import subprocess, sys, time
    hold = 'import time; held = b"x" * 2**28; time.sleep(60)'
    subprocess.Popen([sys.executable, '-c', hold])
    held = b'x' * 2**28
    time.sleep(60)
    """
    world.probe("hungry", probe_source("hungry", body))
    world.campaign("fingerprint", "hungry", "sum")
    monkeypatch.setattr(isolation, "memory_limit_bytes", lambda: 2**28 + 2**27)

    _, result = carry_out(world, None)

    record = world.record("hungry")
    assert (record["status"], record["reason"]) == ("miss", "machine:limit")
    assert "GiB" in record["detail"]
    assert record["run"]["seconds"] < 30
    assert world.record("sum")["status"] == "pass", "the others go on"
    assert len(result.unfinished) == 1


def test_a_file_without_end_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
    with open('big', 'wb') as file:
        while True:
            file.write(b'x' * 2**20)
            file.flush()
    """
    world.probe("writer", probe_source("writer", body))
    world.campaign("fingerprint", "writer")
    monkeypatch.setattr(isolation, "FILE_LIMIT_BYTES", 2**24)

    carry_out(world, None)

    record = world.record("writer")
    assert record["status"] in ("error", "fail")
    assert record["status"] != "pass"
    assert "File too large" in record["detail"] or record["reason"] == "signal:SIGXFSZ"


def test_usage_counts_all_that_a_process_started() -> None:
    code = (
        "import subprocess, sys, time;"
        "x = bytearray(2**26);"
        "subprocess.Popen([sys.executable, '-c',"
        " 'import time; x = bytearray(2**26); print(1, flush=True); time.sleep(60)']);"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            used = usage([process.pid])[process.pid]
        finally:
            os.killpg(process.pid, 9)
    assert used.processes == 2
    assert 2 * 2**26 < used.bytes < 2**30


@pytest.mark.parametrize(
    ("used", "words"),
    [
        (Usage(2**30, 5), None),
        (Usage(2**33, 5), "8.0 GiB"),
        (Usage(2**20, 5000), "5000 processes"),
    ],
)
def test_what_is_too_much(used: Usage, words: str | None) -> None:
    said = excess(used, 2**32)

    assert (said is None) if words is None else (words in (said or ""))
