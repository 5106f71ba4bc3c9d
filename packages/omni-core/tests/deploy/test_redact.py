"""Secrets that must not leave the server."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.deploy.redact import HIDDEN, redact


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("env", {"HOME": "/root", "HF_TOKEN": "hf_x"}, {"HOME": HIDDEN, "HF_TOKEN": HIDDEN}),
        ("env.HOME", "/root", HIDDEN),
        ("engine_args", {"hf_token": "hf_x", "dtype": "auto"}, {"hf_token": HIDDEN, "dtype": "auto"}),
        ("extra", {"access_key": "x", "nested": [{"password": "y"}]}, {"access_key": HIDDEN, "nested": [{"password": HIDDEN}]}),
        ("extra", {"credentials": {"user": "me"}}, {"credentials": {"user": HIDDEN}}),
        ("master", "http://me:pass@host:1/x", f"http://{HIDDEN}@host:1/x"),
        ("max_tokens", 4, 4),
        ("sampling", {"stop_token_ids": [5], "max_tokens": None}, {"stop_token_ids": [5], "max_tokens": None}),
        ("tokenizer_mode", "auto", "auto"),
        ("hf_token", None, None),
    ],
)
def test_secret_is_hidden_and_the_rest_is_not(name: str, value: Any, expected: Any) -> None:
    assert redact(name, value) == expected
