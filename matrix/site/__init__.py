"""The published site: data first, then pages that show nothing but that data."""

from __future__ import annotations

from pathlib import Path

from matrix.campaigns import Campaign, load_campaign
from matrix.components import load_components
from matrix.probe_specs import load_probe_specs
from matrix.records import Record
from matrix.rooms import Rooms
from matrix.site.build import build_matrix
from matrix.site.pages import render_pages
from matrix.site.publish import check_hand_written, replace_generated
from matrix.site.published import MATRIX_FILE, Matrix, from_text, schema_text, to_text
from matrix.store import Store
from patches.candidates import load_candidates

__all__ = ["load_matrix", "render"]

_API = MATRIX_FILE.rpartition("/")[0]


def render(rooms: Rooms) -> list[Path]:
    """Write the data and the pages into the docs folder; return every generated file.

    The same catalogue, probes and evidence give the same bytes.

    Raises:
        DataError: a catalogue, probe or evidence file is wrong.
        MatrixError: the docs folder can't be written, or a page waits for text nothing makes.
    """
    check_hand_written(rooms)
    data = to_text(load_matrix(rooms))
    files = {
        MATRIX_FILE: data,
        f"{_API}/schema/matrix.schema.json": schema_text(Matrix),
        f"{_API}/schema/evidence.schema.json": schema_text(Record),
        **render_pages(from_text(data)),
    }
    return replace_generated(
        rooms, {name: text.encode() for name, text in files.items()} | _evidence(rooms)
    )


def load_matrix(rooms: Rooms) -> Matrix:
    """What the project's files say today, as it is published.

    Raises:
        DataError: a catalogue, probe or evidence file is wrong.
    """
    components = load_components(rooms)
    specs = load_probe_specs(rooms)
    campaigns: list[Campaign] = [
        load_campaign(rooms, path.stem, components, specs)
        for path in sorted(rooms.campaigns.glob("*.toml"))
    ]
    records = [record for _, record in Store(rooms).records()]
    candidates = load_candidates(rooms.candidates)
    return build_matrix(records, specs, components, campaigns, candidates)


def _evidence(rooms: Rooms) -> dict[str, bytes]:
    """Records and locks as they are, so that every number on a page can be followed to its run."""
    store = Store(rooms)
    published = []
    for path, record in store.records():
        published.append(path)
        lock = store.lock(record)
        if lock is not None:
            published.append(lock)
    return {
        f"{_API}/evidence/{path.relative_to(rooms.evidence).as_posix()}": path.read_bytes()
        for path in sorted(set(published))
    }
