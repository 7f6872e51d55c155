"""Settings of one machine: `matrix.local.toml` in the project folder, and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from matrix.errors import DataError
from matrix.models import Model, Slug, explain, read_toml
from matrix.rooms import Rooms
from matrix.running.slurm_jobs import SlurmSettings


class Settings(Model):
    """What one machine says once instead of on every command line."""

    machine: Slug | None = None
    """This machine's name in evidence."""
    python: str | None = None
    """Python of tested environments: a path or a version."""
    wheelhouse: Path | None = None
    """A folder of wheels; with it nothing is asked of any index."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Git component -> local mirror or another remote."""
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)
    """How a cluster is asked for tasks."""


def load_settings(rooms: Rooms) -> Settings:
    """The settings file, or the defaults when there is none.

    Raises:
        DataError: the file is malformed.
    """
    if not rooms.settings.exists():
        return Settings()
    shown = rooms.shown(rooms.settings)
    try:
        settings = Settings.model_validate(read_toml(rooms.settings, shown))
        return _placed(settings, rooms)
    except ValidationError as error:
        raise DataError(f"{shown} does not fit the settings' form:\n{explain(error)}") from None


def _placed(settings: Settings, rooms: Rooms) -> Settings:
    """Relative paths of the settings file are of the project folder it lies in."""
    wheelhouse = settings.wheelhouse
    return settings.model_copy(
        update={
            "wheelhouse": wheelhouse and (rooms.root / wheelhouse.expanduser()).resolve(),
            "sources": {
                name: _source(place, rooms.root) for name, place in settings.sources.items()
            },
        }
    )


def _source(place: str, base: Path) -> str:
    try:
        path = base / Path(place).expanduser()
    except RuntimeError:
        raise DataError(f"{place}: there is no such user.") from None
    return str(path.resolve()) if path.is_dir() else place


def override(
    settings: Settings,
    *,
    machine: str | None,
    python: str | None,
    wheelhouse: Path | None,
    sources: dict[str, str],
) -> Settings:
    """Settings with what the command line says on top.

    Raises:
        DataError: a value has the wrong form.
    """
    given = settings.model_dump()
    given.update(
        {
            name: value
            for name, value in (
                ("machine", machine),
                ("python", python),
                ("wheelhouse", wheelhouse),
            )
            if value is not None
        }
    )
    given["sources"] = {
        **settings.sources,
        **{name: _source(place, Path.cwd()) for name, place in sources.items()},
    }
    try:
        checked = Settings.model_validate(given)
    except ValidationError as error:
        raise DataError(f"The command line does not fit:\n{explain(error)}") from None
    if checked.wheelhouse is not None and not checked.wheelhouse.is_dir():
        raise DataError(
            f"The wheelhouse {checked.wheelhouse} is not a folder. Fill one on a connected machine "
            "with `nox -s wheelhouse`, or name another."
        )
    return checked


def source_pairs(given: Iterable[str]) -> dict[str, str]:
    """Component -> place, from a command line's `COMPONENT=PATH`.

    Raises:
        DataError: one is written otherwise.
    """
    pairs = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or not name or not place:
            raise DataError(f"--source {text}: write COMPONENT=PATH, such as megatron-core=mirror.")
        pairs[name] = place
    return pairs
