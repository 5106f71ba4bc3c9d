"""Forms with one file: multipart bodies, read with a deadline and within limits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from omni_core.errors import RequestError
from omni_server.errors import ApiError

MAX_TEXT_BYTES = 256 * 1024
"""Bytes of a field of the form that is no file."""
FORM_TIMEOUT_S = 120.0
"""Seconds in which an upload must have arrived."""


async def read_form(request: Request, stack: AsyncExitStack) -> FormData:
    """Return a multipart body; its files are gone when `stack` is closed.

    Raises:
        ApiError: The body is something else, or does not arrive in time.
        RequestError: It is damaged, or has too many or too long fields.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        raise ApiError(400, f"the body must be multipart/form-data, not {media_type[:100] or 'nothing'}")
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            form = request.form(max_files=2, max_fields=20, max_part_size=MAX_TEXT_BYTES)
            return await stack.enter_async_context(form)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {FORM_TIMEOUT_S:g} s") from error
    except ApiError:  # the limit of the body
        raise
    except HTTPException as error:
        raise RequestError(f"the form cannot be read: {error.detail}"[:300], hint="send multipart/form-data") from error


def split_form(form: FormData, file_name: str) -> tuple[dict[str, Any], UploadFile | None]:
    """Return the texts of a form by name, and its file.

    Raises:
        RequestError: A field comes twice, or is a file where a text is wanted or the other way round.
    """
    fields: dict[str, Any] = {}
    file = None
    for key, value in form.multi_items():
        shown = key[:60].encode("utf-8", "replace").decode()  # a form may name an encoding of its own
        if key in fields or (key == file_name and file is not None):
            raise RequestError(f"`{shown}` comes twice", param=shown, hint="send each field once")
        if key == file_name:
            if not isinstance(value, UploadFile):
                raise RequestError(f"`{file_name}` is not a file", param=file_name, hint=f"curl -F {file_name}=@speech.wav")
            file = value
        elif isinstance(value, UploadFile):
            raise RequestError(f"`{shown}` is a file", param=shown, hint=f"send text, and the file as `{file_name}`")
        else:
            fields[key] = value
    return fields, file
