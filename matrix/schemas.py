"""JSON Schemas of every file that holds data, made from the models that read them.

Published beside the site, so that an editor can check a file before this program sees it. A schema
says what form a file has; what its entries say of each other is for `data_lint.py`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel

from matrix.components import Catalogue
from matrix.judging.claims import Claims
from matrix.keeping.records import Record
from matrix.planning.campaign_forms import Campaign
from patches.candidates import Candidate

#: Folder of the published schemas, below the docs folder.
FOLDER: Final = "api/v1/schemas"

#: File -> (model, what it describes, fields that the name of a file gives).
_FORMS: Final[dict[str, tuple[type[BaseModel], str, tuple[str, ...]]]] = {
    "components": (Catalogue, "matrix/catalogue/components.toml", ()),
    "claims": (Claims, "matrix/catalogue/claims.toml", ()),
    "campaign": (Campaign, "a file of matrix/catalogue/campaigns", ("name",)),
    "candidate": (Candidate, "a file of patches/candidates", ("id",)),
    "evidence": (Record, "a record of matrix/evidence", ()),
}


def schema(form: str) -> dict[str, Any]:
    """The JSON Schema of one form: `components`, `claims`, `campaign`, `candidate`, `evidence`.

    TOML dates count as the strings that JSON has for them.

    Raises:
        KeyError: there is no such form.
    """
    model, what, named = _FORMS[form]
    made = model.model_json_schema(by_alias=True, mode="validation")
    made["required"] = [name for name in made.get("required", []) if name not in named]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": f"Form of {what}",
    }


def schema_files() -> dict[str, str]:
    """Every schema as a file to publish, by its path below the docs folder."""
    return {
        f"{FOLDER}/{form}.schema.json": json.dumps(schema(form), indent=1, sort_keys=True) + "\n"
        for form in _FORMS
    }
