"""A built site on a local port, and a browser that looks at it."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matrix.site.publish import GENERATED_FILES
from tests.site.world import PROJECT, World

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


def build_site(world: World, **environment: str) -> Path:
    """Build with the real configuration and hand-written pages; what is rendered must be there."""
    root = world.root
    shutil.copy(PROJECT / "mkdocs.yml", root)
    shutil.copytree(PROJECT / "docs" / "assets", root / "docs" / "assets", dirs_exist_ok=True)
    for page in (PROJECT / "docs").glob("*.md"):
        if page.name not in GENERATED_FILES:
            shutil.copy(page, root / "docs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"],
        cwd=root,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return root / "site"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Answers as a host of static pages: with 404.html where there is nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def send_error(self, code: int, *more: Any, **named: Any) -> None:
        page = Path(self.directory) / "404.html"
        if code != 404 or not page.exists():
            super().send_error(code, *more, **named)
            return
        self.send_response(404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(page.read_bytes())


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
