"""What pip's own settings on this machine say about where packages are.

uv does not read pip's settings. A machine without a GPU often offers a CPU build of torch through
them (a folder of wheels, an extra index), and that build is what its tested environments need.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from matrix.building.interpreters import Interpreter
from matrix.building.uv import Packages, run_uv


def _pip(*arguments: str, own_settings: bool = True) -> str | None:
    environment = dict(os.environ)
    if not own_settings:
        environment = {k: v for k, v in environment.items() if not k.startswith("PIP_")}
        environment["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else None


@functools.cache
def ask_ahead() -> Future[str]:
    """Begin asking pip for its settings: that takes half a second, and a plan must answer soon."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pip")
    future = pool.submit(lambda: _pip("config", "list") or "")
    pool.shutdown(wait=False)
    return future


def settings_text() -> str:
    """All of pip's settings, files and environment variables alike, one per line."""
    return ask_ahead().result()


def locations(text: str) -> Packages:
    """The folders and extra indexes that pip's settings name."""
    links: list[str] = []
    indexes: list[str] = []
    for line in text.splitlines():
        name, _, quoted = line.partition("=")
        key = name.rpartition(".")[2]
        target = {"find-links": links, "extra-index-url": indexes}.get(key)
        if target is None:
            continue
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError):
            continue
        target.extend(entry for entry in str(value).split() if entry not in target)
    existing = [url for url in indexes if not url.startswith("file://") or Path(url[7:]).is_dir()]
    return Packages(find_links=tuple(links), extra_indexes=tuple(existing))


def cpu_builds(
    interpreter: Interpreter, wheelhouse: Path | None, *, folders_only: bool
) -> list[str]:
    """Versions of torch built for the CPU alone that pip's settings offer, newest first.

    Only versions with the local label `cpu` count: a version without one may be a build that
    brings gigabytes of CUDA libraries.

    Args:
        folders_only: look in the folders that pip's settings name, and ask no index.
    """
    common = ["index", "versions", "torch", "--json", "--python-version", interpreter.version]
    common += ["--only-binary", ":all:", "--pre"]
    if folders_only:
        common.append("--no-index")
    if wheelhouse is not None:
        common += ["--find-links", str(wheelhouse)]
    # A wheelhouse is the only place that is asked: what this machine offers is not in it.
    output = _pip(*common, own_settings=wheelhouse is None)
    try:
        versions = json.loads(output or "{}").get("versions", [])
    except ValueError:
        return []
    return [version for version in versions if version.endswith("+cpu")]


def uv_cpu_build(interpreter: Interpreter) -> str | None:
    """The newest CPU build at the place uv knows for them, if this machine reaches it."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "torch.in"
        request.write_text("torch\n", encoding="utf-8")
        answer = run_uv(
            "pip", "compile", str(request), "--no-deps", "--no-header", "--no-annotate",
            "--python", interpreter.executable, "--torch-backend", "cpu",
            # A plan waits for this answer; a place out of reach is not asked twice.
            settings={"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "5"},
        )  # fmt: skip
    if not answer.ok:
        return None
    version = answer.output.strip().partition("==")[2]
    return version if version.endswith("+cpu") else None
