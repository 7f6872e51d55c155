"""Whole campaigns whose stacks a strategy chooses, run in processes of their own."""

from __future__ import annotations

import subprocess
import sys

from tests.worlds import REPOSITORY, World

AXES = """
reason = "tests"
probes = {probes}
strategy = "pairwise"

[reference]
name = "base"
reason = "the start"
[reference.components]
torch = "system"
nvidia-cudnn = "system"
megatron-core = "{revision}"
nvidia-cudnn-frontend = "1.0"
nvidia-cutlass-dsl = "2.0"

[axes]
nvidia-cudnn-frontend = ["1.0", "1.1"]
nvidia-cutlass-dsl = ["2.0", "3.0"]

[[rule]]
reason = "1.1 asks for 3 or newer."
requires.when = {{ nvidia-cudnn-frontend = ">=1.1" }}
requires.then = {{ nvidia-cutlass-dsl = ">=3" }}
"""


def lint(world: World) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "matrix", "--root", str(world.root), "campaigns", "lint"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_a_pairwise_campaign_runs_and_goes_on_where_it_stopped(world: World) -> None:
    world.campaign("fingerprint", "sum", text=AXES)

    plan = world.run("--plan")
    first = world.run("--stack", "dsl-3.0")
    rest = world.run()

    assert (first.status, rest.status) == (0, 0), first.output + rest.output
    for name in ("base", "dsl-3.0", "frontend-1.1+dsl-3.0"):
        assert name in plan.output
        assert name in rest.output
    assert "frontend-1.1 (" not in plan.output
    assert len(world.records("sum")) == 3
    assert {record["status"] for record in world.records()} == {"pass"}
    assert "0 to run" in world.run("--plan").output


def test_lint_says_what_rules_do_and_ends_with_what_is_wrong(world: World) -> None:
    world.campaign("fingerprint", "sum", text=AXES)
    good = lint(world)

    assert good.returncode == 0, good.stderr
    assert "default: pairwise, 3 of 4 stacks and 3 of 4 pairs of versions allowed" in good.stdout
    assert "rule 1 removes 1 stack (1 that no other rule does) and 1 pair: 1.1 asks" in good.stdout
    assert (
        "never together: nvidia-cudnn-frontend 1.1 and nvidia-cutlass-dsl 2.0 (rule 1)"
        in good.stdout
    )

    world.campaign("sum", text=AXES, more='\n[[rule]]\nreason = "r"\nexclude.torch = "1.0"\n')
    idle = lint(world)
    assert "warning: rule 2 removes nothing: r" in idle.stdout
    assert "warning: rule 2: exclude.torch: no stack of the campaign has 1.0" in idle.stdout

    world.campaign("sum", text=AXES.replace('">=3"', '"3.1"'))
    bad = lint(world)
    assert bad.returncode == 2
    assert (
        "axes: no stack can have nvidia-cudnn-frontend 1.1: that is ruled out by rule 1."
        in bad.stderr
    )
    assert "Traceback" not in bad.stderr
