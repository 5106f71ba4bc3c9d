"""What of a form is shown in errors."""

from __future__ import annotations

import pytest
from starlette.datastructures import FormData

from omni_core.errors import RequestError
from omni_server.forms import split_form


def test_a_name_that_is_no_text_can_be_shown() -> None:
    """A form may name an encoding in which halves of surrogate pairs can be written."""
    with pytest.raises(RequestError) as caught:
        split_form(FormData([("\ud800", "a"), ("\ud800", "b")]), "file")

    assert caught.value.param == "?"
    str(caught.value).encode()
