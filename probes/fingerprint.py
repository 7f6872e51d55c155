"""Is the loaded software the requested software?

Every component that the stack has and the machine provides is asked itself, in this process: its
module is imported and states its version, and its file says where it came from. cuDNN's number
comes from the library that torch, and the frontend, really loaded. A git tree on the import path
is hashed from the disk, so the tree that runs is the tree that was asked for, patches included.

Then the RECORD files of the environment are read: every Python file and shared library of a
component must have a content that some installed wheel brought, and where two wheels wrote one
path, the record says which of them won. Nothing here has a tolerance: versions are compared as
PEP 440 does (a request without a local part is met by any local build), hashes bit by bit, cuDNN's
version by its first three numbers, since its integer has no more.

Controls: a request for another version, another tree, and a file changed after its installation
must each be noticed.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from probes import git_tree, installed_files, versions
from probes.installed_files import InstalledFiles
from probes.loading import distribution_version, find_module_file
from probes.reasons import Verdict
from probes.session import Check, Concluded, Session

PROBE: Final = {
    "id": "fingerprint",
    "needs": [],
    "required": True,
    "group": "gate",
    "time_limit_s": 300,
    "parameters": {"quick": {}, "thorough": {}},
}

MISMATCH = "loaded:mismatch"
# Importing Megatron Core's package wants things that its layout kernels do without; where it would
# be imported from can be told without.
_ONLY_FOUND = frozenset({"megatron-core"})
# torch first: the frontend loads the same libraries, and takes those that are there already.
_ORDER = ("torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "apache-tvm-ffi")


def run(probe: Session) -> None:
    """Ask every component, then the environment, then the GPU."""
    probe.step("read what the environment's distributions claim")
    files = InstalledFiles(_site_folders(probe))
    probe.measure(
        overwritten_paths_count=sum(sum(o.winners.values()) for o in files.overwrites),
        shared_paths_count=len(files.shared),
    )
    names = sorted(probe.components, key=lambda name: (*_rank(name), name))
    for name in names:
        entry = probe.components[name]
        if entry.get("requested") == "none":
            continue  # the stack has no such part, so there is nothing to agree with
        if name == "nvidia-cudnn" and _only_measured(probe, entry):
            continue
        with probe.check(name) as check:
            probe.require(name)
            _ask(probe, name, entry, files, check)
    _gpu(probe)
    _controls(probe)


def _rank(name: str) -> tuple[int, int]:
    known = _ORDER.index(name) if name in _ORDER else len(_ORDER)
    return known, int(name == "nvidia-cudnn")  # asked through the others, so last


def _site_folders(probe: Session) -> list[Path]:
    own = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    inside = [
        folder for folder in own
        if folder.resolve().is_relative_to(probe.environment.resolve())
    ]  # fmt: skip
    return [folder for folder in (*inside, *probe.places.images) if folder.is_dir()]


def _ask(
    probe: Session, name: str, entry: Mapping[str, Any], files: InstalledFiles, check: Check
) -> None:
    if name in probe.trees:
        _ask_tree(probe, name, entry, check)
    elif name == "nvidia-cudnn":
        _ask_cudnn(probe, entry, check)
    else:
        _ask_package(probe, name, entry, files, check)


def _ask_package(
    probe: Session, name: str, entry: Mapping[str, Any], files: InstalledFiles, check: Check
) -> None:
    module, file = _find_package(probe, name, entry, check)
    stated = getattr(module, "__version__", None)
    installed = distribution_version(entry.get("distribution"))
    if stated is None and installed is None:
        check.expect(False, MISMATCH, f"{name}: it states no version", status="void")
        return
    # A wheel's metadata and the code it brought can disagree after an overwrite.
    sources = {"module": stated, "metadata": installed}
    # A module may state a local part that its metadata lacks, as torch's does, or the other way
    # round; only who states one is held to it, unless neither does.
    anyone = any("+" in str(version) for version in sources.values())
    for source, version in sources.items():
        if version is not None:
            local = not anyone or "+" in str(version)
            _expect_version(check, name, entry, str(version), source, local=local)
    if file is None:
        return
    loaded = probe.loaded(name)
    wanted_origin = entry.get("origin")
    found_origin = loaded.get("origin")
    check.expect(
        found_origin == wanted_origin if wanted_origin else found_origin is not None,
        MISMATCH,
        f"{name}: requested from {wanted_origin or 'a known place'}, "
        f"loaded {loaded.get('file')} from {found_origin or 'elsewhere'}",
        status="void",
    )
    _verify_files(probe, name, files, check, file)
    cuda = getattr(getattr(module, "version", None), "cuda", None)
    if name == "torch":
        check.measure["torch_cuda"] = cuda
        probe.annotate_loaded(name, cuda=cuda)


def _find_package(
    probe: Session, name: str, entry: Mapping[str, Any], check: Check
) -> tuple[Any, Path | None]:
    """A component's module, if it is to be imported, and the module's file."""
    if not entry.get("module"):
        return None, None
    if name not in _ONLY_FOUND:
        module = probe.load(name)
        return module, Path(str(module.__file__))
    with probe.tested("import", f"find {entry['module']}"):
        file = find_module_file(str(entry["module"]))
    check.expect(
        file is not None, MISMATCH, f"{name}: {entry['module']} is found nowhere", status="void"
    )
    if file is not None:
        probe.note_loaded(name, file)
    return None, file


def _expect_version(
    check: Check,
    name: str,
    entry: Mapping[str, Any],
    version: str,
    source: str,
    *,
    local: bool = True,
) -> None:
    for wish in ("requested", "resolved"):
        wanted = entry.get(wish)
        if wanted:
            text = str(wanted) if local else str(wanted).partition("+")[0]
            check.expect(
                versions.matches(text, version),
                MISMATCH,
                f"{name}: {wish} {wanted}, loaded {version} (by its {source})",
                status="void",
            )


def _verify_files(
    probe: Session,
    name: str,
    files: InstalledFiles,
    check: Check,
    module_file: Path,
) -> None:
    top = _top_folder(module_file)
    if top is None:
        return
    verified = files.verify(top)
    check.measure["verified_files_count"] = verified.files
    check.expect(
        not verified.wrong,
        MISMATCH,
        f"{name}: {len(verified.wrong)} of {verified.files} files are not what any installed "
        f"wheel brought, such as {', '.join(verified.wrong[:3])}",
        status="void",
    )
    claimants = {claim.distribution for path in files.under(top) for claim in files.claims[path]}
    notes = installed_files.notes_for(files.overwrites, claimants)
    if notes:
        probe.annotate_loaded(name, **notes)


def _top_folder(module_file: Path) -> Path | None:
    """The folder right below site-packages that a module's file lies in."""
    for folder in module_file.resolve().parents:
        if folder.parent.name in ("site-packages", "dist-packages"):
            return folder
    return None


def _ask_tree(probe: Session, name: str, entry: Mapping[str, Any], check: Check) -> None:
    tree = probe.trees[name]
    folder = Path(tree["path"])
    found = git_tree.tree_id(folder)
    if tree.get("tree"):
        check.expect(
            same_tree(str(tree["tree"]), found),
            MISMATCH,
            f"{name}: requested tree {tree['tree']}, on disk {found}",
            status="void",
        )
    if tree.get("revision") and entry.get("requested"):
        check.expect(
            tree["revision"] == entry["requested"],
            MISMATCH,
            f"{name}: requested {entry['requested']}, the tree is of {tree['revision']}",
            status="void",
        )
    with probe.tested("import", f"find {entry.get('module')}"):
        file = find_module_file(str(entry.get("module")))
    inside = file is not None and file.resolve().is_relative_to(folder.resolve())
    check.expect(
        inside,
        MISMATCH,
        f"{name}: {entry.get('module')} is found at "
        f"{'nowhere' if file is None else probe.places.origin(file)[1]}, not in the tree",
        status="void",
    )
    if file is not None:
        probe.note_loaded(name, file)
        probe.annotate_loaded(name, tree=found)


def same_tree(requested: str, found: str) -> bool:
    """Whether two tree ids are one; only full ids are accepted."""
    return len(requested) == 40 and requested.lower() == found


def _ask_cudnn(probe: Session, entry: Mapping[str, Any], check: Check) -> None:
    answers = _cudnn_answers(probe)
    if not answers:
        raise Concluded(
            Verdict("miss", "machine:no-gpu", "neither torch nor the frontend could load cuDNN")
        )
    for source, number in answers.items():
        check.measure[f"cudnn_version_by_{source}"] = number
        for wish, version in _cudnn_wishes(entry).items():
            check.expect(
                versions.cudnn_version(number) == versions.first_three(version),
                MISMATCH,
                f"nvidia-cudnn: {wish} {version}, {source} loaded {number}",
                status="void",
            )
    number = next(iter(answers.values()))
    if len(answers) > 1:
        check.expect(
            len(set(answers.values())) == 1,
            MISMATCH,
            f"nvidia-cudnn: two versions in one process: {answers}",
            status="void",
        )
    version = ".".join(map(str, versions.cudnn_version(number)))
    library = _mapped_library("libcudnn.so")
    if library is not None:
        probe.note_loaded("nvidia-cudnn", library, version=version)


def _only_measured(probe: Session, entry: Mapping[str, Any]) -> bool:
    """Whether there is neither a version of cuDNN to compare with nor a second opinion."""
    if _cudnn_wishes(entry):
        return False
    try:
        answers = _cudnn_answers(probe)
    except Concluded:
        return False  # the part will say why
    if len(answers) > 1:
        return False
    probe.measure(**{f"cudnn_version_by_{source}": number for source, number in answers.items()})
    return True


def _cudnn_wishes(entry: Mapping[str, Any]) -> dict[str, str]:
    """The versions that were asked for in numbers.

    A stack may ask for the cuDNN that torch's wheel requires; the lock then knows its version. An
    image's torch may have none in any distribution: then nothing is asked for.
    """
    wishes = {wish: str(entry.get(wish) or "") for wish in ("requested", "resolved")}
    return {wish: version for wish, version in wishes.items() if version[:1].isdigit()}


def _cudnn_answers(probe: Session) -> dict[str, int]:
    answers: dict[str, int | None] = {}
    for source, component in (("torch", "torch"), ("frontend", "nvidia-cudnn-frontend")):
        try:
            module = probe.load(component)
        except Concluded:
            continue  # the component's own part says why
        if source == "torch":
            # torch refuses a cuDNN that is older than the one it was built for: a finding.
            with probe.tested("import", "ask torch for its cuDNN"):
                answers[source] = module.backends.cudnn.version()
            continue
        try:
            answers[source] = module.backend_version()
        except (RuntimeError, OSError, AttributeError):
            # The frontend's way of saying that there is no library to load: no finding, since
            # the kernels that are asked about here work without.
            answers[source] = None
    return {source: int(number) for source, number in answers.items() if number}


def _mapped_library(name: str) -> Path | None:
    """The file of a shared library that this process has mapped."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        path = line.partition("/")[2]
        if path and Path(path).name.startswith(name):
            return Path("/" + path)
    return None


def _gpu(probe: Session) -> None:
    try:
        torch = probe.load("torch")
    except Concluded:
        return  # torch's own part has said why
    if not torch.cuda.is_available():
        probe.measure(gpu_name=None, torch_cuda=torch.version.cuda)
        return
    with probe.check("GPU") as check:
        with probe.tested("call", "ask torch about the GPU and launch a kernel"):
            major, minor = torch.cuda.get_device_capability()
            total = int(torch.arange(1024, device="cuda").sum().item())
            name = torch.cuda.get_device_name()
        check.expect(total == 1024 * 1023 // 2, "numerics", f"0 + 1 + … + 1023 gave {total}")
        probe.measure(gpu_name=name, gpu_sm=f"sm{major}{minor}", torch_cuda=torch.version.cuda)


def _controls(probe: Session) -> None:
    probe.step("controls")
    stated = {name: str(probe.loaded(name).get("version") or "") for name in probe.components}
    stated = {name: version for name, version in stated.items() if version}
    accepted = [
        name for name, version in stated.items()
        if versions.matches(versions.other_than(version), version)
    ]  # fmt: skip
    if stated:
        detail = f"{len(accepted)} of {len(stated)} accepted {', '.join(accepted)}".strip()
        probe.control("another version", failed=not accepted, detail=detail)

    folder = Path(tempfile.mkdtemp(prefix="control-", dir=probe.scratch))
    package = folder / "package"
    package.mkdir(parents=True)
    source = package / "module.py"
    source.write_text("value = 1\n", encoding="utf-8")
    before = git_tree.tree_id(package)
    digest = installed_files.digest_of(source, "sha256")
    record = folder / "package-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(f"package/module.py,sha256={digest},10\n", encoding="utf-8")
    clean = InstalledFiles([folder]).verify(package)

    source.write_text("value = 2\n", encoding="utf-8")
    after = git_tree.tree_id(package)
    changed = InstalledFiles([folder]).verify(package)
    probe.control(
        "another tree",
        failed=not same_tree(before, after) and same_tree(before, before),
        detail=f"{before[:12]} became {after[:12]}",
    )
    probe.control(
        "a file changed after its installation",
        failed=len(changed.wrong) == 1 and not clean.wrong,
        detail=f"{len(changed.wrong)} of {changed.files} noticed",
    )
