"""The published site: data first, then pages that show nothing but that data."""

from __future__ import annotations

import datetime as dt
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from matrix.collecting import uncollected
from matrix.components import load_components
from matrix.errors import DataError
from matrix.judging.claims import load_claims
from matrix.keeping.records import Record
from matrix.keeping.store import Store, evidence_files
from matrix.models import explain
from matrix.planning.campaigns import Campaign, load_campaign
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from matrix.schemas import schema_files
from matrix.site.badges import BADGES, Badge, badge_of
from matrix.site.build import build_matrix
from matrix.site.changes import FEED_FILE, feed
from matrix.site.pages import render_pages
from matrix.site.publish import CopiedAhead, check_hand_written, replace_generated
from matrix.site.published import MATRIX_FILE, Matrix, from_text, json_text, schema_text, to_text
from matrix.site.reported import load_reports
from matrix.site.table import TABLE_FILE, Table, build_table, table_text
from patches.candidates import load_candidates
from patches.life import Lives

__all__ = ["load_matrix", "render"]

_API = MATRIX_FILE.rpartition("/")[0]


def render(rooms: Rooms, as_of: dt.date | None = None) -> list[Path]:
    """Write the data and the pages into the docs folder; return every generated file.

    The same catalogue, probes and evidence give the same bytes. With `as_of`, evidence that started
    after that day (UTC) is ignored.

    Raises:
        DataError: a catalogue, probe or evidence file is wrong.
        MatrixError: the docs folder can't be written, or a page waits for text nothing makes.
    """
    check_hand_written(rooms)
    # All of the evidence is kept, and looking for cycles in it takes a sixth longer.
    with uncollected():
        return _render(rooms, as_of)


def _render(rooms: Rooms, as_of: dt.date | None) -> list[Path]:
    # With `as_of` only some of it is published, and which is not known before it is read.
    copied = {} if as_of is not None else _evidence_files(rooms)
    with CopiedAhead(rooms, copied) as ahead:
        return _render_beside(rooms, as_of, ahead)


def _render_beside(rooms: Rooms, as_of: dt.date | None, ahead: CopiedAhead) -> list[Path]:
    records = _records(rooms, as_of)
    evidence = _evidence(rooms, records)
    data = to_text(_matrix(rooms, [record for _, record in records], as_of))
    del records  # the largest thing here, and pages are made from the data alone
    matrix = from_text(data)
    files = {
        MATRIX_FILE: data,
        FEED_FILE: feed(matrix.changes, matrix.name),
        TABLE_FILE: table_text(build_table(matrix)),
        **{f"{BADGES}/{stack.id}.json": json_text(badge_of(stack)) for stack in matrix.stacks},
        f"{_API}/schema/badge.schema.json": schema_text(Badge),
        f"{_API}/schema/table.schema.json": schema_text(Table),
        f"{_API}/schema/matrix.schema.json": schema_text(Matrix),
        f"{_API}/schema/evidence.schema.json": schema_text(Record),
        **schema_files(),
        **render_pages(matrix),
    }
    made = {name: text.encode() for name, text in files.items()}
    return replace_generated(rooms, {**made, **evidence}, ahead)


def load_matrix(rooms: Rooms, as_of: dt.date | None = None) -> Matrix:
    """What the project's files say, as it is published; with `as_of`, as of the end of that day.

    Raises:
        DataError: a catalogue, probe or evidence file is wrong.
    """
    return _matrix(rooms, [record for _, record in _records(rooms, as_of)], as_of)


def _records(rooms: Rooms, as_of: dt.date | None) -> list[tuple[Path, Record]]:
    return [
        (path, record)
        for path, record in Store(rooms).records()
        if as_of is None or record.run.started.astimezone(dt.UTC).date() <= as_of
    ]


def _matrix(rooms: Rooms, records: Sequence[Record], as_of: dt.date | None) -> Matrix:
    components = load_components(rooms)
    specs = load_probe_specs(rooms)
    campaigns: list[Campaign] = [
        load_campaign(rooms, path.stem, components, specs)
        for path in sorted(rooms.campaigns.glob("*.toml"))
    ]
    candidates = load_candidates(rooms.candidates)
    return build_matrix(
        records,
        specs,
        components,
        campaigns,
        candidates,
        lives=_lives(rooms),
        claims=load_claims(rooms, components, specs).claims,
        reports=load_reports(rooms),
        as_of=as_of,
    )


def _lives(rooms: Rooms) -> Lives | None:
    """What becomes of candidates on many revisions, as `nox -s patches` last wrote it down."""
    path = rooms.candidates.parent / "lives.json"
    if not path.exists():
        return None
    try:
        return Lives.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DataError(
            f"{rooms.shown(path)} does not fit its form:\n{explain(error)}\n"
            f"Make it again: nox -s patches -- --json {rooms.shown(path)}"
        ) from None


def _evidence_files(rooms: Rooms) -> dict[str, Path]:
    """All records, unread, by where they are published; what is no plain file is no record."""
    return {
        f"{_API}/evidence/{place}": rooms.evidence / place
        for place, facts in evidence_files(rooms)
        if stat.S_ISREG(facts.st_mode)
    }


def _evidence(rooms: Rooms, records: Iterable[tuple[Path, Record]]) -> dict[str, Path]:
    """Records and locks as they are, so that every number on a page can be followed to its run."""
    store = Store(rooms)
    published = {}
    # Many records name one lock, and it is held against its hash once.
    locks: dict[tuple[str, str, str | None], Path | None] = {}
    for path, record in records:
        folder = f"{_API}/evidence/{record.machine.name}/{record.stack.id}"
        published[f"{folder}/{path.name}"] = path
        named = (record.machine.name, record.stack.id, record.stack.lock)
        if named not in locks:
            locks[named] = lock = store.lock(record)
            if lock is not None:
                published[f"{folder}/{lock.name}"] = lock
    return published
