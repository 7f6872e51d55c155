"""Our JSON is the standard library's, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.indented import indented

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.booleans())
def test_it_is_what_the_standard_library_writes(value: object, sort_keys: bool) -> None:
    expected = json.dumps(value, indent=1, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False)

    assert indented(value, sort_keys=sort_keys) == expected


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        indented({"x": [number]})


@pytest.mark.parametrize("wrong", [{1: "x"}, {"x": {1, 2}}, {"x": b"y"}])
def test_what_json_does_not_have_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        indented(wrong)
