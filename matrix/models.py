"""The base of every data model: unknown keys are refused, values are frozen."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from matrix.errors import DataError
from matrix.visible import visible

#: A name that becomes part of a path or an address.
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class Model(BaseModel):
    """A frozen record; an unknown key is an error, so that a typing mistake can't pass unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def explain(error: ValidationError) -> str:
    """One line per problem: where in the file it is and what is wrong with it."""
    lines = []
    for problem in error.errors(include_url=False):
        where = visible(".".join(str(part) for part in problem["loc"]))[:200] or "top level"
        got = problem.get("input")
        shown = f" (got {repr(got)[:100]})" if isinstance(got, str | int | float | bool) else ""
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
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown} is not valid TOML: {error}. Mend that line.") from None
