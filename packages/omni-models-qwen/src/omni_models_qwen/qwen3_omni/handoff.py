"""From the thinker to the talker: the rows of each position, as the thinker makes them, in the thinker's stage process.

The first payload holds what the talker's InputProcessor needs: the prompt's ids, the facts of its media, the voice that was
asked for, and the rows of every position so far. Later ones hold the `rows` of the tokens that followed.
"""

from __future__ import annotations

from omni_core.engine.edge import join_outputs
from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN, prompt_facts


def thinker2talker_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the first payload once the reply's first token has a row, then the rows of the tokens behind it.

    A token has a row when the thinker has read it, so that of the last one never comes.
    """
    held: list[StageOutput] | None = handoff.state.setdefault("held", [])
    if held is None:
        rows = output.tensors.get(EMBEDS)
        return None if rows is None or not len(rows) else {"rows": rows}
    held.append(output)
    count = sum(len(part.tensors.get(EMBEDS, ())) for part in held)
    if not output.finished and count <= len(handoff.inputs["prompt_token_ids"]):
        return None
    handoff.state["held"] = None
    return thinker2talker(handoff, join_outputs(held))


def thinker2talker(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all of a reply: prompt and rows."""
    return {**prompt_facts(handoff.inputs), **{name: output.tensors[name] for name in (EMBEDS, HIDDEN)}}
