"""Whole campaigns whose stacks a strategy chooses, run in processes of their own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

from tests.wheels import make_wheel
from tests.worlds import REPOSITORY, World, probe_source

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


BISECT = """
reason = "tests"
probes = {probes}
strategy = "bisect"

[bisect]
axis = "nvidia-cudnn-frontend"
good = "2.0"
bad = "2.4"
probe = "old-enough"
part = "age"

[reference]
name = "base"
reason = "the start"
[reference.components]
torch = "system"
nvidia-cudnn = "system"
megatron-core = "{revision}"
nvidia-cudnn-frontend = "2.0"
nvidia-cutlass-dsl = "2.0"

[axes]
nvidia-cudnn-frontend = ["2.4", "2.3", "2.2", "2.1", "2.0"]
nvidia-cutlass-dsl = ["2.0", "3.0"]

[[rule]]
reason = "2.3 asks for 3 or newer."
requires.when = {{ nvidia-cudnn-frontend = ">=2.3" }}
requires.then = {{ nvidia-cutlass-dsl = ">=3" }}
"""
OLD_ENOUGH = """
import cudnn
with probe.check("age") as check:
    check.expect(cudnn.__version__ < "2.2", "numerics", cudnn.__version__)
"""


def test_a_bisection_goes_on_with_each_run_until_it_has_its_answer(world: World) -> None:
    for number in range(5):
        version = f"2.{number}"
        make_wheel(
            world.wheels,
            "nvidia-cudnn-frontend",
            version,
            {"cudnn/__init__.py": f'__version__ = "{version}"\n'},
            requires=("nvidia-cutlass-dsl>=9",) if number == 2 else (),
        )
    world.probe("old-enough", probe_source("old-enough", OLD_ENOUGH))
    world.campaign("fingerprint", "sum", "old-enough", text=BISECT)

    plan = world.run("--plan")
    assert "0 of 5 versions have answered, in 0 runs." in plan.output
    assert "Next: 2.0, 2.4; both ends come first." in plan.output

    ends = world.run()
    assert ends.status == 0, ends.output
    assert "Next: 2.2; between 2.0 (pass) and 2.4 (fail)." in ends.output.splitlines()[-1]
    middle = world.run()  # it can't be installed
    assert "Next: 2.1; between 2.0 (pass) and 2.4 (fail)." in middle.output
    assert world.run().status == 0
    last = world.run()

    assert "Answer: 2.3 is the first bad version, 2.1 the last good one." in last.output
    assert "Between them could not be tested: 2.2." in last.output
    assert (
        "More than one component differs between the two: nvidia-cudnn-frontend 2.1 and 2.3, "
        "nvidia-cutlass-dsl 2.0 and 3.0." in " ".join(last.output.split())
    )
    assert len(world.records("old-enough")) == 4
    assert world.records("sum") == [], "only the probe that is bisected by"
    again = world.run()
    assert again.status == 0, again.output
    assert "Answer: 2.3" in again.output
    assert len(world.records("old-enough")) == 4


def test_a_flaky_bisection_runs_stacks_again(world: World) -> None:
    for version in ("2.0", "2.4"):
        make_wheel(
            world.wheels,
            "nvidia-cudnn-frontend",
            version,
            {"cudnn/__init__.py": f'__version__ = "{version}"\n'},
        )
    world.probe("old-enough", probe_source("old-enough", OLD_ENOUGH))
    text = BISECT.replace('["2.4", "2.3", "2.2", "2.1", "2.0"]', '["2.4", "2.0"]')
    world.campaign("fingerprint", "old-enough", text=text.replace("part =", "flaky = true\npart ="))

    runs = [world.run() for _ in range(2)]

    # One run of each end is not enough to be sure of them, where runs may differ.
    assert [run.status for run in runs] == [0, 0], runs[0].output
    assert "2 of 2 versions have answered, in 2 runs." in runs[0].output
    assert "Next: 2.0; 2.4 is first to be bad with probability" in runs[0].output
    assert "Answer: 2.4 is the first bad version" in runs[1].output
    assert "(probability 0.9" in runs[1].output
    assert len(world.records("old-enough")) == 3, "the good end once more"


def test_parts_of_a_campaign_run_all_of_it(world: World) -> None:
    world.campaign("fingerprint", "sum", text=AXES)

    listed = world.run("--list-jobs")
    jobs = json.loads(listed.output)

    assert [job["name"] for job in jobs["include"]] == ["base", "dsl-3.0", "frontend-1.1+dsl-3.0"]
    chosen = world.run("--list-jobs", "--stack", "base", "--probe", "sum", "--again")
    assert json.loads(chosen.output)["include"] == [
        {"name": "base", "arguments": "--campaign default --stack base --probe=sum --again"}
    ]
    for wrong in (
        ("--stack", "nowhere"),
        ("--probe", "nothing"),
        ("--setting", "nothing"),
        ("--budget", "nothing"),
        ("--executor", "slurm"),
    ):
        assert world.run("--list-jobs", *wrong).status == 2, wrong
    for job in jobs["include"]:
        assert world.run("--plan", *shlex.split(job["arguments"])).status == 0
    plans = [world.run("--plan", "--shard", f"{number}/2").output for number in (1, 2)]
    found = [int(re.search(r"Part ./2: (\d) of 3 stacks", text)[1]) for text in plans]  # type: ignore[index]
    assert sum(found) == 3
    for name in ("base (", "dsl-3.0 (", "frontend-1.1+dsl-3.0 ("):
        assert sum(name in text.replace("frontend-1.1+dsl-3.0 (", "both") for text in plans) <= 1
    assert world.run("--shard", "3/2").status == 2
    assert world.records() == []


def test_a_cluster_is_asked_for_nothing_by_a_local_campaign(world: World) -> None:
    done = world.run("--tasks", "8", "--slurm-cpus", "4")

    assert done.status == 2
    assert "--slurm-cpus, --tasks: only with --executor slurm" in done.output
    assert world.records() == []


def test_a_budget_buys_what_fits_and_says_what_it_leaves(world: World) -> None:
    world.campaign("fingerprint", "sum", text=AXES)

    little = world.run("--plan", "--budget", "200s")
    nothing = world.run("--budget", "1s")
    enough = world.run("--budget", "2h")

    # An environment is reckoned with 40 s, and the two probes with a quarter of their limits.
    assert "Budget 1s: 0 cells of 0 stacks" in nothing.output
    assert re.search(r"Budget 200s: \d cells? of 1 stack, about", little.output), little.output
    assert "Left out: " in little.output
    assert "Pairs of versions seen together: 0 of 3 now, 1 when" in little.output
    assert world.records() != []
    assert "Pairs of versions seen together: 0 of 3 now, 3 when" in enough.output
    assert len(world.records("sum")) == 3
    assert world.run("--budget", "soon").status == 2
