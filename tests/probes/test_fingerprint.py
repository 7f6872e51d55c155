"""The question `is it the requested software?`, on a pretend environment."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes import fingerprint
from probes.git_tree import tree_id
from probes.installed_files import digest_of
from tests.probes.asking import Asker, Reply, component
from tests.probes.wheels_on_disk import unpack


@pytest.fixture
def site(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    asker.environment = asker.folder / "environment"
    folder = asker.environment / "lib" / "site-packages"
    unpack(
        folder,
        "pretend-frontend",
        {
            "pretend_frontend/__init__.py": "__version__ = '1.26.0'\n",
            "pretend_frontend/part.py": "x = 1\n",
        },
        version="1.26.0",
    )
    monkeypatch.setattr(fingerprint, "_site_folders", lambda probe: [folder])
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop("pretend_frontend", None)


def frontend(requested: str = "1.26.0", **more: Any) -> dict[str, Any]:
    known = {"distribution": "pretend-frontend", "module": "pretend_frontend"}
    return component(requested, **{**known, "origin": "environment", **more})


def ask(asker: Asker, **components: dict[str, Any]) -> Reply:
    asker.components = {name.replace("_", "-"): entry for name, entry in components.items()}
    return asker.here("fingerprint")


def test_the_requested_software_passes(asker: Asker, site: Path) -> None:
    reply = ask(asker, frontend=frontend())
    assert reply.end["status"] == "pass", reply.end
    assert reply.parts["frontend"]["measure"]["verified_files_count"] == 2
    assert reply.loaded["frontend"]["version"] == "1.26.0"
    assert reply.loaded["frontend"]["file"] == "site-packages/pretend_frontend/__init__.py"
    assert reply.loaded["frontend"]["origin"] == "environment"
    assert reply.controls == {
        "another version": True,
        "another tree": True,
        "a file changed after its installation": True,
    }


@pytest.mark.parametrize("more", [{"requested": "1.27.0"}, {"resolved": "1.26.0+cu13"}])
def test_another_version_is_void(asker: Asker, site: Path, more: dict[str, str]) -> None:
    reply = ask(asker, frontend=frontend(**more))
    assert (reply.end["status"], reply.end["reason"]) == ("void", "loaded:mismatch")
    assert "frontend" in reply.end["detail"]
    assert "1.26.0" in reply.end["detail"]
    assert next(iter(more.values())) in reply.end["detail"]


def test_metadata_and_module_that_disagree_are_void(asker: Asker, site: Path) -> None:
    unpack(site, "late", {"pretend_frontend/__init__.py": "__version__ = '1.27.0'\n"})
    reply = ask(asker, frontend=frontend("1.27.0"))
    assert reply.end["reason"] == "loaded:mismatch"
    assert "metadata" in reply.end["detail"]
    assert reply.measure["overwritten_paths_count"] == 1
    (note,) = reply.loaded["frontend"]["notes"].values()
    assert note.startswith("1 paths: late won 1")


def test_a_file_edited_after_installation_is_void(asker: Asker, site: Path) -> None:
    (site / "pretend_frontend" / "part.py").write_text("x = 2\n", encoding="utf-8")
    reply = ask(asker, frontend=frontend())
    assert reply.end["reason"] == "loaded:mismatch"
    assert "pretend_frontend/part.py" in reply.end["detail"]


def test_software_from_elsewhere_is_void(
    asker: Asker, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = asker.folder / "elsewhere"
    (elsewhere / "pretend_frontend").mkdir(parents=True)
    (elsewhere / "pretend_frontend" / "__init__.py").write_text(
        "__version__ = '1.26.0'\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(elsewhere))
    reply = ask(asker, frontend=frontend())
    assert reply.end["reason"] == "loaded:mismatch"
    assert "elsewhere" in reply.end["detail"]


def test_an_absent_component_is_a_miss_with_its_reason(asker: Asker, site: Path) -> None:
    reply = ask(asker, frontend=frontend(), flash_mla=component("1", absent="source:unreachable"))
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "source:unreachable")
    assert reply.parts["frontend"]["status"] == "pass"


def test_a_component_that_the_stack_lacks_is_not_asked(asker: Asker, site: Path) -> None:
    reply = ask(asker, frontend=frontend(), flash_mla=component("none"))
    assert list(reply.parts) == ["frontend"]


def test_a_component_that_does_not_import_fails(asker: Asker, site: Path) -> None:
    (site / "pretend_frontend" / "__init__.py").write_text(
        "import no_such_module\n", encoding="utf-8"
    )
    reply = ask(asker, frontend=frontend())
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "import:ModuleNotFoundError")


def test_nothing_to_ask_is_no_check(asker: Asker, site: Path) -> None:
    assert ask(asker).end["reason"] == "probe:no-check"


@pytest.fixture
def tree(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = asker.folder / "tree"
    (folder / "pretend_tree" / "core").mkdir(parents=True)
    (folder / "pretend_tree" / "core" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    asker.trees = {
        "megatron-core": {"path": str(folder), "revision": "a" * 40, "tree": tree_id(folder)}
    }
    yield folder
    for name in ("pretend_tree.core", "pretend_tree"):
        sys.modules.pop(name, None)


def mcore(**more: Any) -> dict[str, Any]:
    return component("a" * 40, **{"module": "pretend_tree.core", "origin": "tree", **more})


def test_the_requested_tree_passes(asker: Asker, site: Path, tree: Path) -> None:
    reply = ask(asker, megatron_core=mcore())
    assert reply.end["status"] == "pass", reply.end
    assert reply.loaded["megatron-core"]["file"] == "pretend_tree/core/__init__.py"
    assert reply.loaded["megatron-core"]["notes"]["tree"] == tree_id(tree)


def test_a_tree_with_another_file_is_void(asker: Asker, site: Path, tree: Path) -> None:
    (tree / "late.py").touch()
    reply = ask(asker, megatron_core=mcore())
    assert reply.end["reason"] == "loaded:mismatch"
    assert "on disk" in reply.end["detail"]


def test_another_revision_is_void(asker: Asker, site: Path, tree: Path) -> None:
    reply = ask(asker, megatron_core={**mcore(), "requested": "b" * 40})
    assert reply.end["reason"] == "loaded:mismatch"


def test_a_package_found_outside_the_tree_is_void(asker: Asker, site: Path, tree: Path) -> None:
    reply = ask(asker, megatron_core=mcore(module="pretend_frontend"))
    assert reply.end["reason"] == "loaded:mismatch"
    assert "not in the tree" in reply.end["detail"]


def test_a_release_of_megatron_core_is_found_without_its_import(asker: Asker, site: Path) -> None:
    (site / "pretend_frontend" / "__init__.py").write_text(
        "import no_such_module\n", encoding="utf-8"
    )
    digest = digest_of(site / "pretend_frontend" / "__init__.py", "sha256")
    record = site / "pretend_frontend-1.26.0.dist-info" / "RECORD"
    record.write_text(f"pretend_frontend/__init__.py,sha256={digest},22\n", encoding="utf-8")
    reply = ask(asker, megatron_core=frontend())
    assert reply.end["status"] == "pass", reply.end
    assert reply.loaded["megatron-core"]["version"] == "1.26.0"
    assert ask(asker, megatron_core=frontend("1.27.0")).end["reason"] == "loaded:mismatch"
    nowhere = ask(asker, megatron_core=frontend(module="never_found"))
    assert nowhere.end["reason"] == "loaded:mismatch"


@pytest.mark.parametrize(
    ("requested", "resolved", "answers", "status", "reason"),
    [
        ("9.19.0.56", None, {"torch": 91900, "frontend": 91900}, "pass", None),
        ("9.19.0.56", None, {"torch": 91900, "frontend": 91600}, "void", "loaded:mismatch"),
        ("9.19.0.56", None, {"torch": 91600}, "void", "loaded:mismatch"),
        ("9.19.0.56", "9.16.0.29", {"torch": 91900}, "void", "loaded:mismatch"),
        ("9.19.0.56", None, {}, "miss", "machine:no-gpu"),
        ("with-torch", "9.19.0.56", {"torch": 91900}, "pass", None),
        ("with-torch", "9.19.0.56", {"torch": 91600}, "void", "loaded:mismatch"),
        ("with-torch", None, {"torch": 91900, "frontend": 91900}, "pass", None),
        ("with-torch", None, {"torch": 91900, "frontend": 91600}, "void", "loaded:mismatch"),
    ],
)
def test_cudnn_by_its_number(
    asker: Asker,
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    requested: str,
    resolved: str | None,
    answers: dict[str, int],
    status: str,
    reason: str | None,
) -> None:
    monkeypatch.setattr(fingerprint, "_cudnn_answers", lambda probe: answers)
    reply = ask(asker, nvidia_cudnn=component(requested, resolved=resolved))
    assert (reply.end["status"], reply.end["reason"]) == (status, reason)


def test_cudnn_with_nothing_to_compare_is_measured_and_no_check(
    asker: Asker, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_cudnn_answers", lambda probe: {"torch": 91900})
    reply = ask(asker, frontend=frontend(), nvidia_cudnn=component("with-torch"))
    assert list(reply.parts) == ["frontend"]
    assert reply.measure["cudnn_version_by_torch"] == 91900


def test_torch_that_refuses_its_cudnn_fails(
    asker: Asker, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise RuntimeError("cuDNN version incompatibility: compiled against (9, 19)")

    cudnn = types.SimpleNamespace(version=refuse)
    pretend = types.ModuleType("pretend_torch")
    pretend.backends = types.SimpleNamespace(cudnn=cudnn)  # type: ignore[attr-defined]
    pretend.cuda = types.SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    pretend.version = types.SimpleNamespace(cuda=None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pretend_torch", pretend)
    reply = ask(
        asker, torch=component("2", module="pretend_torch"), nvidia_cudnn=component("9.19.0.56")
    )
    assert reply.parts["nvidia-cudnn"]["reason"] == "import:RuntimeError"
