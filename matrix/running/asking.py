"""Put one probe's question to a prepared stack, in a process of its own."""

from __future__ import annotations

import shutil
from dataclasses import replace

from matrix.building.preparing import Ready
from matrix.components import Component
from matrix.keeping.records import Number, other_software
from matrix.keeping.redaction import redact
from matrix.probe_specs import ProbeSpec
from matrix.rooms import Rooms
from matrix.running import nodes
from matrix.running.lanes import Lane
from matrix.running.outcomes import Outcome, judge
from matrix.running.processes import Processes, clean_environment
from matrix.running.requests import make_request
from matrix.running.sanitizer import Sanitizer

Parameters = dict[str, Number | list[Number]]


def ask(
    spec: ProbeSpec,
    parameters: Parameters,
    ready: Ready,
    *,
    run_id: str,
    rooms: Rooms,
    components: dict[str, Component],
    places: dict[str, str],
    processes: Processes,
    lane: Lane,
    sanitizer: Sanitizer | None = None,
) -> tuple[Outcome, float]:
    """What a probe's process showed, and how long it took in seconds.

    Args:
        spec: the probe.
        parameters: what it is asked with; they become part of the record.
        ready: the prepared stack.
        run_id: names the log and the scratch folder.
        rooms: the project folder.
        components: the catalogue.
        places: this machine's paths, which no record may show.
        processes: the running processes of this campaign.
        lane: the GPU that the process sees, if any.
        sanitizer: a tool to run the process under.
    """
    scratch = rooms.scratch / processes.campaign / f"{run_id}-{spec.id}"
    command = [str(ready.environment.python), "-s", "-P", str(rooms.probes / "runner.py")]
    limit = spec.time_limit_s
    report = rooms.logs / f"{run_id}-{spec.id}.sanitizer.txt"
    if sanitizer is not None:
        command = sanitizer.wrap(command, report)
        limit *= sanitizer.slowdown
    try:
        ended = processes.run(
            command,
            request=make_request(
                spec=spec,
                parameters=parameters,
                ready=ready,
                components=components,
                scratch=scratch,
                gpu_turn=lane.turn(rooms),
            ),
            environment={
                **clean_environment(scratch, processes.campaign, ready.environment.bytecode),
                **lane.variables,
                **nodes.variables(spec),
            },
            scratch=scratch,
            log=rooms.logs / f"{run_id}-{spec.id}.txt",
            time_limit_s=limit,
            host_network=nodes.nodes_of(spec) > 1,
        )
        outcome = judge(ended, limit)
        if sanitizer is not None:
            outcome = sanitizer.judge(outcome, report)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    outcome = _void_if_other_software(outcome, ready)
    return _redacted(outcome, places), ended.seconds


def _redacted(outcome: Outcome, places: dict[str, str]) -> Outcome:
    """The probe takes out what it knows of; a crash and a child of it may say more."""

    def clean(text: str | None) -> str | None:
        return None if text is None else redact(text, places)

    def cleaned(measure: dict[str, Number]) -> dict[str, Number]:
        return {
            name: clean(value) if isinstance(value, str) else value
            for name, value in measure.items()
        }

    return replace(
        outcome,
        detail=clean(outcome.detail),
        measure=cleaned(outcome.measure),
        parts=[
            part.model_copy(update={"detail": clean(part.detail), "measure": cleaned(part.measure)})
            for part in outcome.parts
        ],
        control=[
            control.model_copy(update={"detail": clean(control.detail)})
            for control in outcome.control
        ],
    )


def _void_if_other_software(outcome: Outcome, ready: Ready) -> Outcome:
    """A run whose process had other software than the stack's is void, whatever it says."""
    other = other_software(ready.stack.requested, outcome.loaded)
    if other is None:
        return outcome
    return replace(outcome, status="void", reason="loaded:mismatch", detail=other)
