"""The command behind `nox -s patches`: what candidates do to revisions, before any GPU is used."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from matrix.components import Component, load_components
from matrix.errors import DataError, MatrixError
from matrix.rooms import Rooms
from matrix.settings import load_settings, override, source_pairs
from matrix.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

    from patches.applying import Pin
    from patches.bases import Series
    from patches.candidates import Candidate
    from patches.frames import Frame
    from patches.survey import Looked, Survey

_DAY = click.DateTime(["%Y-%m-%d"])


@click.command()
@click.argument("frames", nargs=-1)
@click.option("--component", default="megatron-core", show_default=True, help="Whose candidates.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="COMPONENT=PATH",
    help="Local mirror, or another address, of a git component.",
)
@click.option("--candidate", "only", multiple=True, help="Only this one (id, number); repeatable.")
@click.option("--patch", "files", multiple=True, help="A patch file to put beside; repeatable.")
@click.option("--from", "first", type=_DAY, help="First day of the branch's revisions.")
@click.option("--to", "last", type=_DAY, help="Their last day.")
@click.option("--base", "bases", multiple=True, help="One more revision (full SHA); repeatable.")
@click.option("--json", "json_file", type=click.Path(), help="Write JSON there; - prints it.")
@click.option("--svg", type=click.Path(path_type=Path, file_okay=False), help="Write strips there.")
@click.option("--overlap", is_flag=True, help="FRAMES are `file.py:12`, `file.py::name` or names.")
@click.option("--traceback", type=click.File("r"), help="Frames from a pasted traceback.")
@click.option("--at", "revision", help="The revision of the frames; the catalogue's by default.")
@click.option("--fetch", is_flag=True, help="Ask the source for new commits of its branches.")
@click.option("--update", is_flag=True, help="Ask the source for new heads, and show them.")
@click.option("--write", is_flag=True, help="With --update: write them into the candidates.")
@click.pass_obj
def patches(
    rooms: Rooms,
    *,
    frames: tuple[str, ...],
    component: str,
    sources: tuple[str, ...],
    only: tuple[str, ...],
    files: tuple[str, ...],
    first: dt.datetime | None,
    last: dt.datetime | None,
    bases: tuple[str, ...],
    json_file: str | None,
    svg: Path | None,
    overlap: bool,
    traceback: TextIO | None,
    revision: str | None,
    fetch: bool,
    update: bool,
    write: bool,
) -> None:
    """What becomes of candidates on many revisions, and which of them touch a traceback."""
    from matrix.reporting.terminal import console
    from patches.applying import NoPatch
    from patches.inert import GitFailed
    from patches.remotes import SourceError

    if frames and not overlap:
        raise DataError(f"{visible(frames[0])}: frames are compared with --overlap.")
    if write and not update:
        raise DataError("--write goes with --update.")
    components = load_components(rooms)
    if component not in components or components[component].kind != "git":
        known = ", ".join(name for name, part in components.items() if part.kind == "git")
        raise DataError(f"--component {visible(component)}: no git component. There are: {known}.")
    series = _series(rooms, component, first, last)
    screen = console()
    try:
        survey = _survey(
            rooms, components[component], sources, series, only=only, files=files, bases=bases
        )
        if update:
            _update(screen, rooms, survey, write=write)
            return
        survey.sync(again=fetch)
        if overlap or traceback is not None:
            text = traceback.read() if traceback is not None else ""
            at = revision or next((v.version for v in components[component].versions), "")
            looked = survey.look(_frames(frames, text), at)
            _overlap(screen, looked, json_file)
            return
        _lives(screen, survey, json_file, svg)
    except SourceError as error:
        raise MatrixError(str(error)) from None
    except NoPatch as error:
        raise DataError(f"--patch: {error}.") from None
    except GitFailed as error:
        raise MatrixError(f"{component}: {error}") from None


def _series(
    rooms: Rooms, component: str, first: dt.datetime | None, last: dt.datetime | None
) -> Series:
    from patches.bases import load_series

    found = load_series(rooms.candidates.parent / "bases.toml").get(component)
    if found is None:
        raise DataError(f"patches/bases.toml says nothing of {component}. Add it there.")
    changes = {"first": first and first.date(), "last": last and last.date()}
    return found.model_copy(update={name: day for name, day in changes.items() if day is not None})


def _survey(
    rooms: Rooms,
    component: Component,
    sources: Sequence[str],
    series: Series,
    *,
    only: Sequence[str],
    files: Sequence[str],
    bases: Sequence[str],
) -> Survey:
    from patches.candidates import Patching, candidate_of_file, pin_of
    from patches.history import is_sha
    from patches.remotes import Remote
    from patches.survey import Survey

    settings = override(
        load_settings(rooms),
        machine=None,
        python=None,
        wheelhouse=None,
        sources=source_pairs(sources),
    )
    for base in bases:
        if not is_sha(base):
            raise DataError(f"--base {visible(base)} is not a full commit SHA.")
    patching = Patching(rooms.candidates, [component.name])
    wanted = {pin.id for pin in patching.chosen(only)}
    pins: list[tuple[Candidate, Pin]] = [
        (candidate, pin_of(candidate, rooms.candidates))
        for candidate in patching.candidates.values()
        if candidate.component == component.name and (not only or candidate.id in wanted)
    ]
    pins += [(candidate_of_file(pin), pin) for pin in patching.chosen(files)]
    catalogue = [v.version for v in component.versions if component.is_revision(v.version)]
    return Survey(
        remote=Remote(component.name, settings.sources.get(component.name, component.remote or "")),
        cache=rooms.sources,
        roots=component.roots,
        candidates=pins,
        series=series,
        catalogue=[*dict.fromkeys([*catalogue, *bases])],
    )


def _lives(screen: Console, survey: Survey, json_file: str | None, svg: Path | None) -> None:
    from patches.strips import strip
    from patches.tables import show_lives

    with screen.status("looking") if screen.is_terminal else _Silent() as status:
        lives = survey.lives(lambda text: status.update(visible(text)))
    if json_file is not None:
        _write(json_file, lives.model_dump_json(indent=1) + "\n")
    if svg is not None:
        svg.mkdir(parents=True, exist_ok=True)
        for life in lives.candidates:
            (svg / f"{life.id}.svg").write_text(strip(life, lives), encoding="utf-8")
    if json_file != "-":
        show_lives(screen, lives)


def _write(place: str, text: str) -> None:
    if place == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MatrixError(f"{visible(place)} can't be written: {error.strerror}.") from None


class _Silent:
    """Where nothing moves, progress is not told."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def update(self, _text: str) -> None:
        """Say nothing."""


def _frames(given: Sequence[str], text: str) -> list[Frame]:
    from patches.frames import frame_of, frames_in

    frames = frames_in(text)
    for item in given:
        frame = frame_of(item)
        if frame is None:
            raise DataError(
                f"{visible(item)} is no frame. Write `file.py:12`, `file.py::name` or a name."
            )
        frames.append(frame)
    return list(dict.fromkeys(frames))


def _overlap(screen: Console, looked: Looked, json_file: str | None) -> None:
    from patches.tables import overlap_json, show_overlap

    if json_file is not None:
        _write(json_file, overlap_json(looked) + "\n")
    if json_file != "-":
        show_overlap(screen, looked)


def _update(screen: Console, rooms: Rooms, survey: Survey, *, write: bool) -> None:
    from patches import heads

    found = heads.ask(survey.history, survey.candidates)
    for head in found:
        before = head.candidate.head[:12]
        now = head.now[:12] if head.now else "not on offer"
        change = f"{before} -> {now}" if head.moved else f"{before} (unchanged)"
        if head.now is None:
            change = f"{before} (the source offers no head of it)"
        screen.print(f"{head.candidate.shown:8} {change}", markup=False, highlight=False)
    moved = sum(head.moved for head in found)
    if not write:
        if moved:
            screen.print(f"{moved} moved. Look at them, then write them down with --write.")
        return
    written = heads.write(survey.history, found, rooms.candidates, dt.datetime.now(dt.UTC).date())
    screen.print(f"{len(written)} written: {', '.join(written) or 'none'}.", highlight=False)
