"""Sessions of a few lines each; what they do is in `matrix`."""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests", "docs"]
nox.needs_version = ">=2025.11.12"

# nox may have been put on the path this way; what it starts must not see nox's own packages.
os.environ.pop("PYTHONPATH", None)
# The Python that runs nox may hold the image's torch; a session's own Python does not.
os.environ.setdefault("MATRIX_RUNNER_PYTHON", sys.executable)
# Images of containers often forbid bytecode; then every process compiles the same modules again,
# for a second or two. It is kept here, so that nothing is written outside this folder.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(Path(".nox", "bytecode").resolve())

GROUPS = nox.project.load_toml("pyproject.toml")["dependency-groups"]


def install(session: nox.Session, *groups: str) -> None:
    """Install dependency groups; with a wheelhouse, from that folder alone."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--wheelhouse", default=local_settings().get("wheelhouse"))
    folder = parser.parse_known_args(session.posargs)[0].wheelhouse
    if folder and not Path(str(folder)).is_dir():
        session.warn(f"{folder} is not a folder. Mend --wheelhouse or matrix.local.toml.")
        raise SystemExit(2)
    offline = ["--no-index", "--find-links", str(folder)] if folder else []
    wanted = [requirement for group in groups for requirement in GROUPS[group]]
    session.install(*offline, *wanted, silent=True)


def local_settings() -> dict[str, str]:
    """This machine's settings; `matrix` reads them too, and says what is wrong with them."""
    try:
        return tomllib.loads(Path("matrix.local.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def host(session: nox.Session, command: str) -> None:
    """Run a command of the host side, and end with its exit status: nox alone knows only 1."""
    cluster = any(word in ("slurm", "--executor=slurm") for word in session.posargs)
    install(session, "host", *(["slurm"] if cluster else []))
    try:
        session.run("python", "-m", "matrix", command, *session.posargs)
    except CommandFailed as failed:
        raise SystemExit(failed.return_code or 1) from None


@nox.session
def matrix(session: nox.Session) -> None:
    """Run a campaign and show the table; `-- --plan` shows what would run."""
    host(session, "run")


@nox.session
def probe(session: nox.Session) -> None:
    """Repeat the run of one evidence file exactly: `-- EVIDENCE.json`."""
    host(session, "probe")


@nox.session
def patches(session: nox.Session) -> None:
    """Show what becomes of candidate pull requests on many revisions; no GPU is used."""
    host(session, "patches")


@nox.session
def wheelhouse(session: nox.Session) -> None:
    """Fill a folder of wheels for an offline machine."""
    host(session, "wheelhouse")


@nox.session
def merge(session: nox.Session) -> None:
    """Add the evidence of other machines: `-- FOLDER...`, each a folder, a .tar or a .tgz."""
    host(session, "merge")


@nox.session
def ask(session: nox.Session) -> None:
    """Say what the evidence knows of a combination: `-- fe=1.26.0 dsl=4.5.2`."""
    host(session, "ask")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, strictly; `-- --as-of 2026-12-01` as the evidence stood on that day."""
    install(session, "host", "docs")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--as-of")
    day = parser.parse_known_args(session.posargs)[0].as_of
    session.run("python", "-m", "matrix", "render", *(["--as-of", day] if day else []))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def zensical(session: nox.Session) -> None:
    """See whether the same tree builds with Zensical; a failure is told and fails nothing."""
    try:
        install(session, "host", "zensical")
        session.run("python", "-m", "matrix", "render")
        session.run("zensical", "build", "--clean")
    except CommandFailed:
        session.warn("The tree does not build with Zensical here. The site does not need it.")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests."""
    install(session, "host", "docs", "slurm", "tests")
    session.run("python", "-m", "matrix", "cpu-torch")
    session.run("python", "-m", "pytest", "--numprocesses=auto", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure planning, scheduling, loading, building and throughput: `-- scheduling`."""
    install(session, "host", "docs", "bench")
    session.run("python", "-m", "tests.bench", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, spelling and format, every file of data, and what the campaigns' rules say."""
    install(session, "host", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")
    session.run("python", "-m", "matrix", "lint")
    session.run("python", "-m", "matrix", "campaigns", "lint")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    install(session, "host", "docs", "slurm", "types")
    session.run("mypy")
