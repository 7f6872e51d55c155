"""What the engine does with a GPU that is unwell, played without one."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import pytest

from matrix.building.here import Here
from matrix.building.interpreters import find_interpreter
from matrix.building.machine import Gpu
from matrix.components import load_components
from matrix.keeping.ledger import Ledger
from matrix.keeping.records import Record
from matrix.keeping.redaction import redact
from matrix.keeping.store import Store
from matrix.planning.campaigns import load_campaign
from matrix.planning.plan import Cell, Choices, Plan, make_plan
from matrix.probe_specs import gates_of, load_probe_specs
from matrix.running.engine import Engine, Result
from matrix.running.lanes import lanes_for
from matrix.settings import Settings
from matrix.versions import same_version
from tests.wheels import make_wheel
from tests.worlds import CAMPAIGN, World, probe_source

GPU = Gpu("NVIDIA H200", "sm90", "580.1", "13.0")
NEEDS = "['torch', 'gpu:sm90']"
HEALTH = "'group': 'health'"


class Quiet:
    def doing(self, text: str) -> None: ...

    def began(self, cell: Cell, gpu: str | None) -> None: ...

    def ran(self, cell: Cell, record: Record) -> None: ...

    def trouble(self, text: str) -> None: ...


def carry_out(
    world: World,
    gpu: Gpu | None = GPU,
    width: int | None = None,
    gpus: list[Gpu] | None = None,
    seconds: float | None = None,
) -> tuple[Plan, Result]:
    components = load_components(world.rooms)
    probes = load_probe_specs(world.rooms)
    store = Store(world.rooms)
    settings = Settings(wheelhouse=world.wheels, sources={"megatron-core": str(world.upstream)})
    plan = make_plan(
        campaign=load_campaign(world.rooms, "default", components, probes),
        here=Here(
            rooms=world.rooms,
            components={
                name: component.model_copy(update={"default": "2.0.0+cpu"})
                if name == "torch"
                else component
                for name, component in components.items()
            },
            settings=settings,
            gpu=gpu,
            gpus=gpus or (),
            python=None,
        ),
        probes=probes,
        machine="tiny",
        evidence=Ledger(world.rooms, gates_of(probes)),
        choices=Choices(),
    )
    engine = Engine(
        plan=plan,
        rooms=world.rooms,
        components=components,
        probes=probes,
        store=store,
        progress=Quiet(),
        campaign="tests",
        width=width,
        seconds=seconds,
    )
    return plan, engine.run()


def crashing(world: World, health: str) -> None:
    world.probe("crash", probe_source("crash", "import os; os.abort()", needs=NEEDS))
    world.probe(
        "later",
        probe_source(
            "later", "with probe.check('x') as c: c.expect(True, 'numerics', '')", needs=NEEDS
        ),
    )
    world.probe("health", probe_source("health", health).replace("'group': 'functional'", HEALTH))
    text = CAMPAIGN.replace('nvidia-cudnn = "system"', 'nvidia-cudnn = "none"')
    world.campaign("fingerprint", "crash", "later", text=text)


def test_a_broken_gpu_is_never_a_broken_combination(world: World) -> None:
    crashing(world, "with probe.check('x') as c: c.expect(False, 'numerics', 'sum is wrong')")

    _, result = carry_out(world)

    record = world.record("crash")
    assert (record["status"], record["reason"]) == ("miss", "machine:gpu-unhealthy")
    assert "signal:SIGABRT" in record["detail"]
    assert world.records("later") == [], "nothing more is put to a GPU that is unwell"
    assert len(result.unfinished) == 2


def test_a_crash_on_a_well_gpu_is_the_softwares(world: World) -> None:
    crashing(world, "with probe.check('x') as c: c.expect(True, 'numerics', '')")

    _, result = carry_out(world)

    assert world.record("crash")["reason"] == "signal:SIGABRT"
    assert world.record("later")["status"] == "pass"
    assert result.unfinished == []
    assert world.record("later")["machine"]["sm"] == "sm90"


FLASH_MLA = """
[[component]]
name = "flash-mla"
title = "FlashMLA"
short = "FlashMLA"
kind = "image"
distribution = "flash-mla"
module = "flash_mla"
reason = "forward"
link = "https://example.org/flash-mla"
"""


def test_a_part_of_the_image_is_loaded_from_it_and_proven(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its module leaves out the local part of its version, as a build from source does."""
    image = tmp_path / "image" / "site-packages"
    for wheel in (
        world.wheels / "torch-2.0.0+cpu-py3-none-any.whl",
        make_wheel(
            tmp_path, "flash-mla", "1.0.0+abc", {"flash_mla/__init__.py": "__version__ = '1.0.0'"}
        ),
    ):
        zipfile.ZipFile(wheel).extractall(image)
    place = str(image.resolve())
    plain = find_interpreter(None)
    monkeypatch.setattr(
        "matrix.building.here.find_interpreter",
        lambda wanted: dataclasses.replace(
            plain, provided={"torch": ("2.0.0+cpu", place), "flash-mla": ("1.0.0+abc", place)}
        ),
    )
    with (world.rooms.catalogue / "components.toml").open("a") as file:
        file.write(FLASH_MLA)
    world.probe(
        "forward",
        probe_source(
            "forward",
            "probe.load('flash-mla')\nwith probe.check('x') as c: c.expect(True, 'numerics', '')",
            needs="['flash-mla']",
        ),
    )
    text = CAMPAIGN.replace("[components]", '[components]\nflash-mla = "system"')
    world.campaign("fingerprint", "forward", text=text)

    carry_out(world, None)

    assert world.record("fingerprint")["reason"] in (None, "machine:no-gpu")
    record = world.record("forward")
    assert (record["status"], record["reason"]) == ("pass", None)
    assert record["stack"]["requested"]["flash-mla"] == "1.0.0+abc"
    loaded = record["stack"]["loaded"]["flash-mla"]
    assert (loaded["version"], loaded["origin"]) == ("1.0.0+abc", "image")


SHARED = """
import time
with probe.check('x') as c:
    started = time.time()
    time.sleep(5)
    probe.measure(started_s=started, ended_s=time.time())
    c.expect(True, 'numerics', '')
"""
ALONE = """
import time
with probe.check('x') as c:
    with probe.alone():
        started = time.time()
        time.sleep(0.3)
        ended = time.time()
    probe.measure(started_s=started, ended_s=ended)
    c.expect(True, 'numerics', '')
"""


def test_who_needs_the_gpu_alone_prepares_beside_others_and_waits_for_it(world: World) -> None:
    lonely = "'alone': True, 'group': 'timing'"
    for name in ("first", "second"):
        world.probe(name, probe_source(name, SHARED, needs=NEEDS))
    for name in ("third", "fourth"):
        # The limit is shorter than the wait may be, which does not count.
        source = probe_source(name, ALONE, needs=NEEDS, limit=4)
        world.probe(name, source.replace("'group': 'functional'", lonely))
    world.probe("health", probe_source("health", "pass").replace("'group': 'functional'", HEALTH))
    text = CAMPAIGN.replace('nvidia-cudnn = "system"', 'nvidia-cudnn = "none"')
    world.campaign("fingerprint", "first", "second", "third", "fourth", text=text)

    carry_out(world, width=4)

    records = {name: world.record(name) for name in ("first", "second", "third", "fourth")}
    assert {record["status"] for record in records.values()} == {"pass"}
    spans = {
        name: (record["measure"]["started_s"], record["measure"]["ended_s"])
        for name, record in records.items()
    }
    for name in ("third", "fourth"):
        others = [span for other, span in spans.items() if other != name]
        alone = spans[name]
        assert all(alone[1] <= span[0] or span[1] <= alone[0] for span in others), spans


SHOWN = """
import os, time
time.sleep(0.5)
with probe.check('x') as c: c.expect(True, 'numerics', '')
probe.measure(device=os.environ['CUDA_VISIBLE_DEVICES'])
"""
OTHER = """
[[stack]]
name = "other"
reason = "another frontend"
components = { nvidia-cudnn-frontend = "1.1", nvidia-cutlass-dsl = "3.0" }
"""
TWO = [Gpu("NVIDIA H200", "sm90", "580.1", "13.0", device) for device in ("0", "3")]


def two_stacks(world: World, health: str, *probes: str) -> None:
    world.probe("health", probe_source("health", health).replace("'group': 'functional'", HEALTH))
    for name in probes:
        world.probe(name, probe_source(name, SHOWN, needs=NEEDS))
    text = CAMPAIGN.replace('nvidia-cudnn = "system"', 'nvidia-cudnn = "none"')
    world.campaign("fingerprint", *probes, text=text, more=OTHER)


WELL = "with probe.check('x') as c: c.expect(True, 'numerics', '')"


def test_each_gpu_works_through_a_stack_of_its_own(world: World) -> None:
    two_stacks(world, WELL, "one", "two", "three")

    _, result = carry_out(world, width=4, gpus=TWO)

    by_stack: dict[str, set[object]] = {}
    for name in ("one", "two", "three"):
        for record in world.records(name):
            assert record["status"] == "pass"
            by_stack.setdefault(record["stack"]["id"], set()).add(record["measure"]["device"])
    # On a slow machine the first GPU may be free again before the second stack is ready.
    assert all(len(devices) == 1 for devices in by_stack.values())
    assert set.union(*by_stack.values()) <= {"0", "3"}
    assert result.busy_s <= result.seconds


def test_a_gpu_that_stays_broken_is_put_aside_and_its_cells_go_elsewhere(world: World) -> None:
    ill = "import os\n"
    ill += "with probe.check('x') as c: c.expect(os.environ['CUDA_VISIBLE_DEVICES'] == '0', "
    ill += "'numerics', 'sum is wrong')"
    two_stacks(world, ill, "one", "two", "three", "four")
    crash = "import os\nif os.environ['CUDA_VISIBLE_DEVICES'] == '3': os.abort()\n"
    for name in ("one", "two"):
        world.probe(name, probe_source(name, crash + SHOWN, needs=NEEDS))

    _, result = carry_out(world, width=2, gpus=TWO)

    passed = [r for r in world.records() if r["status"] == "pass" and "device" in r["measure"]]
    missed = [r for r in world.records() if r["status"] == "miss"]
    # None, where the well GPU had taken both stacks before the broken one was asked.
    assert {record["reason"] for record in missed} <= {"machine:gpu-unhealthy"}
    assert not [record for record in world.records() if record["status"] == "fail"]
    assert {r["measure"]["device"] for r in passed if r["probe"]["id"] in ("one", "two")} == {"0"}
    # Whatever the broken GPU had not begun was run by the other one.
    assert len(passed) + len(missed) == 8
    assert len(result.unfinished) == len(missed)


def test_a_probe_that_asks_for_two_gpus_gets_two_and_nobody_beside_it(world: World) -> None:
    two_stacks(world, WELL, "one", "two", "pair")
    source = probe_source("pair", SHOWN, needs=NEEDS)
    world.probe("pair", source.replace("'required': True", "'required': True, 'gpus': 2"))

    _, result = carry_out(world, width=2, gpus=TWO)

    pairs = world.records("pair")
    assert [record["measure"]["device"] for record in pairs] == ["0,3", "0,3"]
    last = max(r["run"]["started"] for r in world.records() if r["probe"]["id"] != "pair")
    assert all(record["run"]["started"] >= last for record in pairs)
    assert result.unfinished == []


def test_too_few_gpus_are_the_machines_lack(world: World) -> None:
    two_stacks(world, WELL, "pair")
    source = probe_source("pair", SHOWN, needs=NEEDS)
    world.probe("pair", source.replace("'required': True", "'required': True, 'gpus': 2"))

    plan, _ = carry_out(world, gpus=TWO[:1])

    cells = [cell for cell in plan.cells if cell.probe.id == "pair"]
    assert {(cell.state, cell.reason) for cell in cells} == {("not here", "machine:too-few-gpus")}
    assert world.records("pair") == []


def test_another_kind_of_gpu_is_left_alone() -> None:
    gpus = [TWO[0], Gpu("NVIDIA B200", "sm100", "580.1", "13.0", "1")]

    assert [lane.label for lane in lanes_for(gpus)] == ["GPU 0"]
    assert [lane.label for lane in lanes_for([])] == ["CPU"]


def test_when_the_time_is_over_nothing_more_is_begun(world: World) -> None:
    two_stacks(world, WELL, "one", "two", "three")

    _, result = carry_out(world, width=1, seconds=0.0)

    assert result.runs == 0
    assert len(result.left_out) == 8
    assert result.unfinished == []
    _, later = carry_out(world, width=2)
    assert (later.runs, later.left_out) == (8, [])


@pytest.mark.parametrize("gpu", [None, Gpu("NVIDIA B200", "sm100", "580.1", "13.0")])
def test_a_probe_for_another_gpu_is_not_run_here(world: World, gpu: Gpu | None) -> None:
    crashing(world, "pass")

    plan, result = carry_out(world, gpu)

    cell = next(cell for cell in plan.cells if cell.probe.id == "crash")
    assert (cell.state, cell.reason) == ("not here", "machine:no-gpu")
    assert "needs an sm90 GPU" in cell.why
    assert result.unfinished == []
    assert world.records("crash") == []


@pytest.mark.parametrize(
    ("asked", "have", "same"),
    [
        ("2.11.0", "2.11.0+cu130", True),
        ("2.11.0+cu129", "2.11.0+cu130", False),
        ("1.26.0", "1.26", True),
        ("1.26.0", "1.27.0", False),
        ("0.1.15.post2", "0.1.15", False),
        ("odd", "odd", True),
    ],
)
def test_versions_are_compared_as_versions(asked: str, have: str, same: bool) -> None:
    assert same_version(asked, have) is same


def test_paths_are_taken_out_of_texts() -> None:
    text = "cp /srv/runner/x.py failed; see https://example.org/a/b and /opt/venv/bin/python3"

    assert redact(text, {"/opt/venv/bin/python3": "<python>"}) == (
        "cp <path>/x.py failed; see <address> and <python>"
    )


def test_texts_of_evidence_hold_no_tokens_and_drive_no_terminal() -> None:
    text = "at https://host/TOKEN/simple?key=1 and https://github.com/NVIDIA/x \x1b[2J\u202e"

    assert redact(text, {}) == "at <address> and https://github.com/NVIDIA/x \\u001b[2J\\u202e"
