"""Prompts of stages without an InputProcessor: token ids, or a text for the stage's tokenizer. Runs in the stage host."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.errors import RequestError
from omni_core.payload import Payload
from omni_core.runner import EngineInput


def plain_input(payload: Payload, tokenizer: Any, where: str) -> EngineInput:
    """Return `prompt_token_ids` of a payload, or its `prompt` as tokens; told to the next stage as a conversation's is.

    Raises:
        RequestError: There is neither, or no tokenizer for the text.
    """
    ids = payload.get("prompt_token_ids")
    if ids is not None:
        tokens = [int(token) for token in ids]
    else:
        text = payload.get("prompt")
        if not isinstance(text, str) or tokenizer is None:
            raise RequestError(
                "the input has neither prompt_token_ids nor a prompt that can be tokenized",
                where=where,
                param="prompt",
                hint="send prompt_token_ids" if tokenizer is None else "send prompt or prompt_token_ids",
            )
        tokens = list(tokenizer.encode(text))
    return EngineInput(tokens, handoff={"prompt_token_ids": np.asarray(tokens, np.int64), "mm": {}, "placeholders": {}})
