"""Over the network: what a real server gives, filtered where it allows that."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from patches.history import History
from patches.patched import Patcher
from patches.remotes import Remote, SourceError
from patches.sources import Source
from tests.patches.repositories import CORE, Upstream, pin

CHANGED = CORE.replace("y = x + 1", "y = x + 10")


class _Git(http.server.BaseHTTPRequestHandler):
    """Hands requests to git's own server program."""

    root: Path

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _serve(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            check=False,
            env={
                **os.environ,
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        status = 200
        fields = []
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name == "Status":
                status = int(value.split()[0])
            elif name:
                fields.append((name, value))
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "served" / "upstream")
    made.git("config", "uploadpack.allowFilter", "true")
    made.git("config", "uploadpack.allowAnySHA1InWant", "true")
    made.dev({"pkg/core.py": CORE, "pkg/other.py": "other = 1\n"}, "start")
    return made


@pytest.fixture
def address(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    handler = type("Handler", (_Git,), {"root": upstream.folder.parent})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/upstream"
        finally:
            server.shutdown()
            thread.join()


def blobs(history: History) -> set[str]:
    """Contents that are here, without fetching any."""
    listed = subprocess.run(
        ["git", "cat-file", "--batch-all-objects", "--batch-check", "--unordered"],
        cwd=history.folder,
        env={**os.environ, "GIT_NO_LAZY_FETCH": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [line.split() for line in listed.stdout.splitlines()]
    return {name for name, kind, _ in lines if kind == "blob"}


def test_contents_come_when_they_are_needed(
    upstream: Upstream, address: str, tmp_path: Path
) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(1, {"pkg/core.py": CHANGED}, start)
    upstream.dev({"pkg/late.py": "late = 1\n"})
    history = History(Remote("core", address), tmp_path / "cache")

    missing = history.sync(branches=["dev"], heads=[(1, head), (None, start)])

    assert missing == {}
    assert blobs(history) == set()
    made = Patcher(Remote("core", address), tmp_path / "cache", ["pkg"]).make(start, [pin(1, head)])
    assert made.applied[0].result == "clean"
    assert made.path is not None
    assert (made.path / "pkg" / "core.py").read_text() == CHANGED
    late = upstream.git("rev-parse", "refs/heads/dev:pkg/late.py")
    assert blobs(history)
    assert late not in blobs(history)
    # No address is kept, for it may hold a password.
    assert "127.0.0.1" not in (history.folder / "config").read_text()


def test_a_server_that_does_not_filter_gives_everything(
    upstream: Upstream, address: str, tmp_path: Path
) -> None:
    upstream.git("config", "uploadpack.allowFilter", "false")
    start = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(1, {"pkg/core.py": CHANGED}, start)

    made = Patcher(Remote("core", address), tmp_path / "cache", ["pkg"]).make(start, [pin(1, head)])

    assert made.applied[0].result == "clean"


def test_a_pinned_head_is_had_after_the_request_moved_on(
    upstream: Upstream, address: str, tmp_path: Path
) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    seen = upstream.request(1, {"pkg/core.py": CHANGED}, start)
    upstream.request(1, {"pkg/core.py": CHANGED + "import evil\n"}, start)

    made = Patcher(Remote("core", address), tmp_path / "cache", ["pkg"]).make(start, [pin(1, seen)])

    assert made.path is not None
    assert (made.path / "pkg" / "core.py").read_text() == CHANGED


def test_new_commits_are_asked_for_on_request(
    upstream: Upstream, address: str, tmp_path: Path
) -> None:
    history = History(Remote("core", address), tmp_path / "cache")
    history.sync(branches=["dev"])
    before = history.branch("dev")
    newer = upstream.dev({"pkg/late.py": "late = 1\n"})

    history.sync(branches=["dev"])
    assert history.branch("dev") == before
    history.sync(branches=["dev"], again=True)
    assert history.branch("dev") == newer


def test_a_plain_worktree_comes_over_the_network_too(
    upstream: Upstream, address: str, tmp_path: Path
) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")

    tree = Source("core", address, tmp_path / "cache").worktree(start)

    assert (tree.path / "pkg" / "core.py").read_text() == CORE


def test_a_server_that_goes_away(upstream: Upstream, address: str, tmp_path: Path) -> None:
    gone = address.replace("/upstream", "/nothing")
    start = upstream.git("rev-parse", "refs/heads/dev")

    with pytest.raises(SourceError) as caught:
        Patcher(Remote("core", gone), tmp_path / "cache", ["pkg"]).make(start, [pin(1, start)])
    assert len(str(caught.value).splitlines()) == 1
