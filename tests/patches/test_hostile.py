"""Repositories and patches made to do harm: refused in one clear message, and nothing happens."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from patches.applying import Pin
from patches.inert import GitFailed
from patches.patched import Patched, Patcher
from patches.remotes import Remote, SourceError
from tests.patches.repositories import CORE, Upstream, patch_pin, pin

CHANGED = CORE.replace("y = x + 1", "y = x + 10")


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "upstream")
    made.dev({"pkg/core.py": CORE}, "start")
    return made


@pytest.fixture
def proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that every trap would make. The machine's own settings define the traps' programs."""
    made = tmp_path / "ran"
    program = f"touch {made}; cat"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-commit",
                 "fsmonitor-watchman", "post-merge", "applypatch-msg"):  # fmt: skip
        (hooks / name).write_text(f"#!/bin/sh\ntouch {made}\n")
        (hooks / name).chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f'[filter "evil"]\n\tsmudge = "{program}"\n\tclean = "{program}"\n\trequired = true\n'
        f'[merge "evil"]\n\tdriver = "{program}"\n'
        f'[diff "evil"]\n\tcommand = "{program}"\n\ttextconv = "{program}"\n'
        f'[core]\n\thooksPath = {hooks}\n\tfsmonitor = "{program}"\n'
        f"\tattributesFile = {tmp_path / 'attributes'}\n\tpager = {program}\n"
        f'[diff]\n\texternal = "{program}"\n[init]\n\ttemplateDir = {tmp_path / "template"}\n'
    )
    (tmp_path / "attributes").write_text("* filter=evil merge=evil diff=evil\n")
    template = tmp_path / "template" / "hooks"
    template.mkdir(parents=True)
    (template / "post-checkout").write_text(f"#!/bin/sh\ntouch {made}\n")
    (template / "post-checkout").chmod(0o755)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"sh -c 'touch {made}'")
    yield made
    assert not made.exists(), "something was run"


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[None]:
    """What lies beside the cache and the upstream stays as it was."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("as it was")
    yield
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "as it was"
    beyond = [*(tmp_path / "cache").rglob("evil*"), *tmp_path.glob("evil*")]
    assert not beyond, beyond


def made(upstream: Upstream, tmp_path: Path, *pins: Pin, base: str | None = None) -> Patched:
    remote = Remote("core", str(upstream.folder))
    revision = base or upstream.git("rev-parse", "refs/heads/dev")
    return Patcher(remote, tmp_path / "cache", ["pkg"]).make(revision, pins)


def tree(upstream: Upstream, *entries: tuple[str, str, str]) -> str:
    """A tree that git itself would refuse to make: (mode, name, object)."""
    raw = b"".join(
        f"{mode} {name}".encode() + b"\0" + bytes.fromhex(sha) for mode, name, sha in entries
    )
    return upstream.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", feed=raw)


def request_tree(upstream: Upstream, *entries: tuple[str, str, str]) -> Pin:
    """A request whose tree has these entries in `pkg`, beside what is there."""
    start = upstream.git("rev-parse", "refs/heads/dev")
    core = upstream.git("rev-parse", f"{start}:pkg/core.py")
    inner = tree(upstream, *sorted([("100644", "core.py", core), *entries], key=lambda e: e[1]))
    outer = tree(upstream, ("40000", "pkg", inner))
    return pin(1, upstream.commit_tree(outer, parents=[start], ref="refs/pull/1/head"))


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside/kept", "..", "../.git/config"])
def test_a_link_that_leaves_the_tree(upstream: Upstream, tmp_path: Path, target: str) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.commit(
        {"pkg/link.py": target, "pkg/core.py": CHANGED},
        parents=[start],
        modes={"pkg/link.py": "120000"},
        ref="refs/pull/1/head",
    )

    answer = made(upstream, tmp_path, pin(1, head))

    if target == "..":  # the tree's own top folder
        assert answer.applied[0].result == "clean"
        return
    assert answer.path is None
    assert answer.applied[0].result == "unsafe"
    assert "is a link that leaves the tree" in (answer.applied[0].why or "")


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize(
    "name",
    [".git", ".GIT", ".Git ", "git~1", "GIT~1", ".g\u200cit", ".git.", ".git::$INDEX", "．git"],
)
def test_gits_own_folder_by_any_name(upstream: Upstream, tmp_path: Path, name: str) -> None:
    hook = upstream.blob(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    hooks = tree(upstream, ("100755", "post-checkout", hook))
    folder = tree(upstream, ("40000", "hooks", hooks))

    answer = made(upstream, tmp_path, request_tree(upstream, ("40000", name, folder)))

    assert answer.path is None
    assert (answer.applied[0].result, answer.tree) == ("unsafe", None)
    assert "git's own folder" in (answer.applied[0].why or "")


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize(
    "name", ["..", ".", "../../outside/evil", "/evil", "a\\..\\evil", "evil\x1b[2J"]
)
def test_names_that_lead_elsewhere(upstream: Upstream, tmp_path: Path, name: str) -> None:
    blob = upstream.blob("x = 1\n")

    answer = made(upstream, tmp_path, request_tree(upstream, ("100644", name, blob)))

    assert answer.path is None
    assert answer.applied[0].result == "unsafe"
    assert "\x1b" not in (answer.applied[0].why or "")


@pytest.mark.usefixtures("proof", "quiet")
def test_a_folder_that_is_also_a_link_to_elsewhere(upstream: Upstream, tmp_path: Path) -> None:
    link = upstream.blob(str(tmp_path / "outside"))
    evil = tree(upstream, ("100644", "evil", upstream.blob("evil")))

    answer = made(
        upstream, tmp_path, request_tree(upstream, ("120000", "d", link), ("40000", "d", evil))
    )

    assert answer.path is None
    assert answer.applied[0].result == "unsafe"


@pytest.mark.usefixtures("proof", "quiet")
def test_a_submodule_is_refused_and_its_address_never_asked(
    upstream: Upstream, tmp_path: Path
) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    address = f"ext::sh -c 'touch {tmp_path / 'ran'}'"
    upstream.git("read-tree", start)
    upstream.git("update-index", "--add", "--cacheinfo", f"160000,{start},pkg/sub")
    modules = (
        f'[submodule "s"]\n\tpath = pkg/sub\n\turl = {address}\n\tupdate = !touch {tmp_path}/ran\n'
    )
    upstream.git(
        "update-index", "--add", "--cacheinfo", f"100644,{upstream.blob(modules)},.gitmodules"
    )
    head = upstream.commit_tree(upstream.git("write-tree"), parents=[start], ref="refs/pull/1/head")

    answer = made(upstream, tmp_path, pin(1, head))

    assert answer.applied[0].result == "unsafe"
    assert "submodule" in (answer.applied[0].why or "")


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize("where", [".gitattributes", "pkg/.gitattributes"])
def test_attributes_of_the_tree_have_no_effect(
    upstream: Upstream, tmp_path: Path, where: str
) -> None:
    """Programs that they name are not run, and files come out as they are stored."""
    start = upstream.git("rev-parse", "refs/heads/dev")
    attributes = (
        "* filter=evil merge=evil diff=evil ident text eol=crlf working-tree-encoding=UTF-16\n"
    )
    head = upstream.request(1, {where: attributes, "pkg/core.py": CHANGED + "# $Id$\n"}, start)
    base = upstream.dev(
        {"pkg/core.py": CORE.replace("MIDDLE = 1", "MIDDLE = 5"), where: attributes}
    )

    answer = made(upstream, tmp_path, pin(1, head), base=base)

    assert answer.applied[0].result in ("clean", "three-way")
    assert answer.path is not None
    text = (answer.path / "pkg" / "core.py").read_bytes()
    assert text == CHANGED.replace("MIDDLE = 1", "MIDDLE = 5").encode() + b"# $Id$\n"


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize("driver", ["union", "ours", "binary", "evil"])
def test_a_merge_driver_of_the_tree_hides_no_conflict(
    upstream: Upstream, tmp_path: Path, driver: str
) -> None:
    fork = upstream.dev({".gitattributes": f"*.py merge={driver} -diff\n"})
    head = upstream.request(1, {"pkg/core.py": CHANGED}, fork)
    base = upstream.dev({"pkg/core.py": CORE.replace("y = x + 1", "y = x + 2")})

    answer = made(upstream, tmp_path, pin(1, head), base=base)

    (applied,) = answer.applied
    assert applied.result == "conflict"
    assert (applied.conflicts[0].ours, applied.conflicts[0].theirs) == (["first"], ["first"])


@pytest.mark.usefixtures("proof", "quiet")
def test_lines_that_look_like_conflict_marks_are_lines(upstream: Upstream, tmp_path: Path) -> None:
    marks = "<<<<<<< ours\n=======\n>>>>>>> theirs\n"
    fork = upstream.dev({"pkg/core.py": CORE + f'"""\n{marks}"""\n'})
    head = upstream.request(1, {"pkg/core.py": CHANGED + f'"""\n{marks}"""\n'}, fork)
    base = upstream.dev({"pkg/core.py": CORE.replace("y = x + 1", "y = 0") + f'"""\n{marks}"""\n'})

    (applied,) = made(upstream, tmp_path, pin(1, head), base=base).applied

    assert (applied.conflicts[0].ours, applied.conflicts[0].theirs) == (["first"], ["first"])


@pytest.mark.usefixtures("proof", "quiet")
def test_settings_and_hooks_of_a_mirror_are_not_ours(upstream: Upstream, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (upstream.folder / "config").write_text(
        (upstream.folder / "config").read_text()
        + f'[core]\n\tfsmonitor = "touch {ran}"\n\talternateRefsCommand = "touch {ran}"\n'
        f'\tsshCommand = "touch {ran}"\n[uploadpack]\n\tpackObjectsHook = "touch {ran}"\n'
        f'[filter "evil"]\n\tsmudge = "touch {ran}; cat"\n'
    )
    hooks = upstream.folder / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-upload-pack", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (hooks / name).chmod(0o755)
    start = upstream.git("-c", "core.hooksPath=/dev/null", "rev-parse", "refs/heads/dev")
    upstream.git("config", "core.hooksPath", "/dev/null")
    head = upstream.request(1, {"pkg/core.py": CHANGED, ".gitattributes": "* filter=evil"}, start)
    upstream.git("config", "--unset", "core.hooksPath")

    answer = made(upstream, tmp_path, pin(1, head), base=start)

    assert answer.applied[0].result == "clean"


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize(
    "address",
    [
        "ext::sh -c 'touch {ran}'",
        "--upload-pack=touch {ran}",
        "fd::17",
        "file:///no/such",
        "-u{ran}",
    ],
)
def test_addresses_that_are_programs(upstream: Upstream, tmp_path: Path, address: str) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    remote = Remote("core", address.format(ran=tmp_path / "ran"))

    assert not remote.reachable()
    with pytest.raises(SourceError) as caught:
        Patcher(remote, tmp_path / "cache", ["pkg"]).make(start, [pin(1, start)])
    assert caught.value.reason == "source:unreachable"
    assert len(str(caught.value).splitlines()) == 1


HEADER = (
    "diff --git a/{0} b/{0}\nnew file mode {1}\nindex 0000000..0cfbf08\n"
    "--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{2}\n"
)


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize(
    "text",
    [
        HEADER.format("../../outside/evil", "100644", "x"),
        HEADER.format("/evil", "100644", "x"),
        HEADER.format(".git/hooks/evil", "100755", "x"),
        HEADER.format("pkg/.GIT/config", "100644", "x"),
        HEADER.format("pkg/sub/../../../evil", "100644", "x"),
        HEADER.format("pkg/l", "120000", "/etc\n\\ No newline at end of file"),
        HEADER.format("pkg/l", "120000", "../../outside\n\\ No newline at end of file")
        + HEADER.format("pkg/l/evil", "100644", "x"),
        "diff --git a/pkg/core.py b/../evil\nsimilarity index 100%\nrename from pkg/core.py\n"
        "rename to ../evil\n",
        "diff --git a/pkg/m b/pkg/m\nnew file mode 160000\nindex 0000000..0cfbf08\n--- /dev/null\n"
        "+++ b/pkg/m\n@@ -0,0 +1 @@\n+Subproject commit 0cfbf08886fca9a91cb753ec8734c84fcbe52c9f\n",
        HEADER.format('"pkg/\\033]0;evil\\007"', "100644", "x"),
    ],
)
def test_patch_files_that_reach_out(upstream: Upstream, tmp_path: Path, text: str) -> None:
    (applied,) = made(upstream, tmp_path, patch_pin(text.encode())).applied

    assert applied.tree is None
    assert applied.result in ("unsafe", "conflict")
    assert "\x1b" not in (applied.why or "")
    assert not (tmp_path / "cache" / "worktrees").exists()


@pytest.mark.usefixtures("proof", "quiet")
@pytest.mark.parametrize(
    "text",
    [
        "diff --git a/pkg/core.py b/pkg/core.py\n--- a/pkg/core.py\n+++ b/pkg/core.py\n"
        "@@ -1,999999999 +1 @@\n-x\n",
        "diff --git a/x b/x\nGIT binary patch\nliteral 99999999999\nzcmZ\n\n",
        "diff --git a/x",
    ],
)
def test_patch_files_that_are_none(upstream: Upstream, tmp_path: Path, text: str) -> None:
    (applied,) = made(upstream, tmp_path, patch_pin(text.encode())).applied

    assert applied.result == "unavailable"
    assert len((applied.why or "").splitlines()) == 1


def test_a_moved_head_is_never_run_unseen(upstream: Upstream, tmp_path: Path) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    seen = upstream.request(1, {"pkg/core.py": CHANGED}, start)
    upstream.request(1, {"pkg/core.py": CHANGED + "import evil\n"}, start, "moved")

    answer = made(upstream, tmp_path, pin(1, seen))
    assert answer.path is not None
    assert "evil" not in (answer.path / "pkg" / "core.py").read_text()

    upstream.git("reflog", "expire", "--expire=now", "--all")
    upstream.git("gc", "--quiet", "--prune=now")
    other = tmp_path / "other"
    answer = made(upstream, other, pin(1, seen))
    (applied,) = answer.applied
    assert (applied.result, answer.path) == ("unavailable", None)
    assert seen in (applied.why or "")


def test_a_worktree_is_read_only_evidence_of_its_tree(upstream: Upstream, tmp_path: Path) -> None:
    """What somebody puts into a worktree is found before it is used."""
    start = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(1, {"pkg/core.py": CHANGED}, start)
    first = made(upstream, tmp_path, pin(1, head))
    assert first.path is not None
    (first.path / "pkg" / "evil.py").write_text("import os")

    second = made(upstream, tmp_path, pin(1, head))

    assert second.path == first.path
    assert not (first.path / "pkg" / "evil.py").exists()


def test_git_is_asked_for_no_program(upstream: Upstream, tmp_path: Path) -> None:
    """Every program that git starts while a request is put onto a revision is git's own."""
    start = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(1, {"pkg/core.py": CHANGED}, start)
    trace = tmp_path / "trace"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_TRACE2_EVENT", str(trace))
        made(upstream, tmp_path, pin(1, head))
    import json

    children = [
        event["argv"]
        for line in trace.read_text().splitlines()
        if (event := json.loads(line))["event"] == "child_start"
    ]
    # The local mirror's own `upload-pack` tells its refs.
    assert {Path(argv[0].split()[0]).name for argv in children} <= {"git-upload-pack", "git"}
    assert subprocess.run(["git", "--version"], check=True, capture_output=True).returncode == 0
    assert GitFailed(1, "x").status == 1
