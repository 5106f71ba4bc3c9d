"""What goes on, whole: the thinker's rows to the talker, the talker's codes to Code2Wav. Runs in the producers' processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN, prompt_facts

Ints = np.ndarray[Any, np.dtype[np.int64]]


def thinker2talker(handoff: Handoff, output: StageOutput) -> Payload:
    """Return what the talker reads of a whole reply.

    `rows` [P + 1 + n, W] are embeddings and hidden states added up, for the P positions of the prompt and, behind an empty row
    for the mark of the voice, for the n tokens of the reply that the thinker read. The positions of media are to be read
    without the embeddings; where there may be some, their hidden states go along as `media_rows`, beside `media_positions`.
    """
    import torch  # pipelines are looked at where it is not installed

    embeds, hidden = torch.as_tensor(output.tensors[EMBEDS]), torch.as_tensor(output.tensors[HIDDEN])
    prompt = len(handoff.inputs["prompt_token_ids"])
    rows = torch.zeros((len(hidden) + 1, hidden.shape[1]), dtype=hidden.dtype)
    torch.add(hidden[:prompt], embeds[:prompt], out=rows[:prompt])
    torch.add(hidden[prompt:], embeds[prompt:], out=rows[prompt + 1 :])
    payload: dict[str, Any] = {"rows": rows}
    positions = _media_positions(handoff.inputs, prompt)
    if len(positions):
        payload |= {"media_positions": positions, "media_rows": hidden[torch.from_numpy(positions)]}
    return {**prompt_facts(handoff.inputs), **payload}


def _media_positions(inputs: Mapping[str, Any], prompt: int) -> Ints:
    """Return the positions that may belong to images, videos or audio, and no other text than the marks around these."""
    ranges = [row for found in (inputs.get("placeholders") or {}).values() for row in np.asarray(found).reshape(-1, 2)]
    if not ranges:
        return np.arange(prompt if inputs.get("mm") else 0, dtype=np.int64)
    return np.unique(np.concatenate([np.arange(start, start + length, dtype=np.int64) for start, length in ranges]))


def talker2code2wav(handoff: Handoff, output: StageOutput) -> Payload:
    """Return the codes [n, 1] of a whole reply, without the id that ended it, and the voice that they are for."""
    codes = np.asarray(output.token_ids, dtype=np.int32)
    if len(codes) and codes[-1] in handoff.inputs["ends"]:
        codes = codes[:-1]
    return {"codes": codes[:, None], "voice": handoff.inputs["voice"]}
