"""The base of every data model: unknown keys are refused, values are frozen."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from matrix.errors import DataError


class Model(BaseModel):
    """A frozen record; an unknown key is an error, so that a typing mistake can't pass unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def explain(error: ValidationError) -> str:
    """One line per problem: where in the file it is and what is wrong with it."""
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"]) or "top level"
        got = problem.get("input")
        shown = f" (got {got!r})" if isinstance(got, str | int | float | bool) else ""
        lines.append(f"  {where}: {problem['msg']}{shown}")
    return "\n".join(lines)


def read_toml(path: Path, shown: str) -> dict[str, Any]:
    """The tables of a TOML file; `shown` is the name used in messages."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise DataError(f"{shown} does not exist.") from None
    except OSError as error:
        raise DataError(f"{shown} can't be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{shown} is not valid TOML: {error}. Mend that line.") from None
