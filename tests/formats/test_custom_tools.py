"""Free text as arguments, and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.custom_tools import to_arguments, to_text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_free_text_comes_back_as_it_was(text: str) -> None:
    assert json.loads(to_arguments(text)) == {"input": text}
    assert to_text(to_arguments(text)) == text


@pytest.mark.parametrize("arguments", ["", "*** Begin Patch", "{}", '{"input":1}', "[1]", "{"])
def test_arguments_that_hold_no_text_are_the_text(arguments: str) -> None:
    assert to_text(arguments) == arguments
