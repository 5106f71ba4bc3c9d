"""The model's turn: answers begin, grow, end, are cancelled, and are heard or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_duplex.errors import DuplexError
from omni_duplex.model import AudioOut, Fence, Heard, Listen, ResponseOptions, TextOut, ToolCall, TurnEnd
from omni_duplex.protocol.objects import item_object, response_object, response_part
from omni_duplex.session import events as ev
from omni_duplex.session import hearing, living
from omni_duplex.session.history import messages
from omni_duplex.session.state import Item, Part, Response, Session, Speaking
from omni_duplex.session.timers import arm, disarm

PLAYED = "played"
"""Runs out when a client that plays at once has played all of an answer."""

# -- beginning ---------------------------------------------------------------------------------------------------------


def create(session: Session, event: ev.CreateResponse, now: float) -> list[ev.Effect]:
    """Answer at the client's word."""
    if not session.is_turn_model:
        raise DuplexError(
            "response_create_unsupported",
            "this model decides by itself when it speaks",
            hint="append audio; answers come on their own",
        )
    if session.speaking is Speaking.RESPONDING:
        raise DuplexError(
            "conversation_already_has_active_response",
            f"response {_active(session).id} is under way",
            hint="wait for response.done, or send response.cancel",
        )
    items = session.items if event.input is None else list(event.input)
    if not items and not event.options.get("instructions"):
        raise DuplexError(
            "response_create_without_input", "there is nothing to answer", hint="commit audio or create an item first"
        )
    return _begin(session, now, event.options, items)


def answer_turn(session: Session, now: float) -> list[ev.Effect]:
    """Answer a turn of the user that was just committed, now or when the answer under way is done."""
    if not session.is_turn_model:
        return []
    if session.speaking is not Speaking.RESPONDING:
        return _begin(session, now, {}, session.items)
    if session.pending_turns >= session.limits.max_pending_turns_per_session:
        error = DuplexError(
            "input_backpressure",
            f"{session.pending_turns} turns wait for an answer already; this one will get none of its own",
            kind="rate_limit_error",
            retryable=True,
            hint="wait for response.done",
        )
        return [ev.Send({"type": "error", "error": error.body()})]
    session.pending_turns += 1
    return []


def _begin(session: Session, now: float, options: Mapping[str, Any], items: list[Item]) -> list[ev.Effect]:
    effects = _finish_playback(session)
    response = _open(session, options)
    chosen = _options(session, options)
    effects.append(_tell(session, "response.created", response, "in_progress"))
    effects.append(ev.Respond(response.fence, messages(session, items, chosen.instructions), chosen))
    return effects


def _open(session: Session, options: Mapping[str, Any]) -> Response:
    modalities = tuple(options.get("output_modalities") or session.config.output_modalities)
    joins = options.get("conversation", "auto") != "none"
    response = Response(session.new_id("resp"), session.fence, options, modalities, joins)
    session.response, session.speaking = response, Speaking.RESPONDING
    return response


def _options(session: Session, options: Mapping[str, Any]) -> ResponseOptions:
    config = session.config
    return ResponseOptions(
        instructions=options.get("instructions", config.instructions),
        output_modalities=tuple(options.get("output_modalities") or config.output_modalities),
        voice=options.get("voice", config.voice),
        tools=tuple(options.get("tools", config.tools)),
        tool_choice=options.get("tool_choice", config.tool_choice),
        max_output_tokens=options.get("max_output_tokens", config.max_output_tokens),
    )


# -- growing -----------------------------------------------------------------------------------------------------------


def produced(session: Session, event: ev.Produced, now: float) -> list[ev.Effect]:
    """Take what the model gave; what belongs to a cancelled answer or an earlier turn is dropped."""
    output = event.output
    if not _is_current(session, output.fence):
        return []
    if isinstance(output, Listen):
        return [ev.Send({"type": "response.listen"})]
    if isinstance(output, Heard):
        return _heard(session, output)
    if session.speaking is not Speaking.RESPONDING:
        if session.is_turn_model or isinstance(output, TurnEnd):
            return []
        effects = _finish_playback(session)
        effects.append(_tell(session, "response.created", _open(session, {}), "in_progress"))
        return effects + _grow(session, output, now)
    return _grow(session, output, now)


def _grow(session: Session, output: AudioOut | TextOut | ToolCall | TurnEnd, now: float) -> list[ev.Effect]:
    response = _active(session)
    if isinstance(output, TurnEnd):
        status, reason = ("completed", None) if output.reason == "stop" else ("incomplete", "max_output_tokens")
        return _end(session, now, status, reason=reason, usage=output.usage)
    if isinstance(output, ToolCall):
        return [*_close_item(session, "completed"), *_call(session, output)]
    effects = _open_part(session)
    part = response.part
    assert part is not None, "_open_part made one"
    where = _where(session)
    if isinstance(output, TextOut):
        part.text += output.text
        part.marks.append((part.audio_ms, output.text))
        name = "output_audio_transcript" if part.type == "output_audio" else "output_text"
        return [*effects, ev.Send({"type": f"response.{name}.delta", **where, "delta": output.text})]
    if part.type != "output_audio":
        return effects  # text was asked for; its sound is not
    response.started = now if response.started is None else response.started
    part.audio_ms += len(output.pcm) * 1000 / output.sample_rate
    return [*effects, ev.Send({"type": "response.output_audio.delta", **where, "delta": output})]


def _open_part(session: Session) -> list[ev.Effect]:
    response = _active(session)
    if response.part is not None:
        return []
    part = Part("output_audio" if "audio" in response.modalities else "output_text")
    item = Item(session.new_id("item"), "message", "assistant", "in_progress")
    effects = _add_item(session, item)
    item.content.append(part)
    response.part = part
    added = {"type": "response.content_part.added", **_where(session), "part": response_part(part)}
    return [*effects, ev.Send(added)]


def _add_item(session: Session, item: Item) -> list[ev.Effect]:
    response = _active(session)
    before = session.last_item_id
    response.items.append(item)
    index = len(response.items) - 1
    shown = item_object(item)
    added: dict[str, Any] = {"type": "response.output_item.added", "response_id": response.id, "output_index": index}
    effects: list[ev.Effect] = [ev.Send({**added, "item": shown})]
    if response.joins:
        session.items.append(item)
        effects.append(ev.Send({"type": "conversation.item.added", "previous_item_id": before, "item": shown}))
    return effects


def _call(session: Session, output: ToolCall) -> list[ev.Effect]:
    response = _active(session)
    item = Item(session.new_id("item"), "function_call", status="in_progress", call_id=output.call_id, name=output.name)
    effects = _add_item(session, item)
    item.arguments = output.arguments
    where = {"response_id": response.id, "item_id": item.id, "output_index": len(response.items) - 1, "call_id": item.call_id}
    kind = "response.function_call_arguments"
    effects.append(ev.Send({"type": f"{kind}.delta", **where, "delta": item.arguments}))
    effects.append(ev.Send({"type": f"{kind}.done", **where, "name": item.name, "arguments": item.arguments}))
    return effects + _finish_item(session, item, "completed")


def _heard(session: Session, output: Heard) -> list[ev.Effect]:
    """Put a unit model's own idea of the user's words to the user's last item."""
    item = next((item for item in reversed(session.items) if item.role == "user"), None)
    if item is None or not output.final or not item.content:
        return []
    return hearing.transcribed(session, ev.Transcribed(item.id, output.text, item.content[0].audio_ms / 1000), 0.0)


# -- ending ------------------------------------------------------------------------------------------------------------


def _end(
    session: Session,
    now: float,
    status: str,
    *,
    reason: str | None = None,
    error: DuplexError | None = None,
    usage: Mapping[str, int] | None = None,
) -> list[ev.Effect]:
    """End the answer under way, exactly once, and go on with the turn that waits, if there is one."""
    response = _active(session)
    effects = _close_item(session, "completed" if status == "completed" else "incomplete")
    body = None if error is None else {name: error.body()[name] for name in ("type", "code", "message")}
    effects.append(_tell(session, "response.done", response, status, reason=reason, error=body, usage=usage or {}))
    session.fence = replace(session.fence, turn=session.fence.turn + 1)
    effects += _play_out(session, now)
    if session.pending_turns:
        # One answer covers every turn that came in while the last one was given.
        session.pending_turns = 0
        return effects + _begin(session, now, {}, session.items)
    return effects


def _play_out(session: Session, now: float) -> list[ev.Effect]:
    response = _active(session)
    left = _audio_ms(response) / 1000 - (now - (response.started if response.started is not None else now))
    if left <= 0:
        return _silent(session, now)
    session.speaking = Speaking.DRAINING
    return [arm(session, PLAYED, now + left)]


def _silent(session: Session, now: float) -> list[ev.Effect]:
    session.speaking, session.response = Speaking.SILENT, None
    return hearing.await_user(session, now)


def playback_over(session: Session, event: ev.Timer, now: float) -> list[ev.Effect]:
    """Note that an answer was played to its end."""
    return _silent(session, now) if session.speaking is Speaking.DRAINING else []


def _finish_playback(session: Session) -> list[ev.Effect]:
    """Make room for the next answer while the last one is still played."""
    session.speaking, session.response = Speaking.SILENT, None
    return disarm(session, PLAYED, hearing.WAITING)


def _close_item(session: Session, status: str) -> list[ev.Effect]:
    """End the message that grows, if one does."""
    response = _active(session)
    part = response.part
    if part is None:
        return []
    where = _where(session)
    effects: list[ev.Effect] = []
    if part.type == "output_audio":
        effects.append(ev.Send({"type": "response.output_audio.done", **where}))
        effects.append(ev.Send({"type": "response.output_audio_transcript.done", **where, "transcript": part.text}))
    else:
        effects.append(ev.Send({"type": "response.output_text.done", **where, "text": part.text}))
    effects.append(ev.Send({"type": "response.content_part.done", **where, "part": response_part(part)}))
    response.part = None
    return effects + _finish_item(session, response.items[-1], status)


def _finish_item(session: Session, item: Item, status: str) -> list[ev.Effect]:
    response = _active(session)
    item.status = "completed" if status == "completed" else "incomplete"
    shown = item_object(item)
    done = {"type": "response.output_item.done", "response_id": response.id, "output_index": response.items.index(item)}
    effects: list[ev.Effect] = [ev.Send({**done, "item": shown})]
    if response.joins:
        effects.append(ev.Send({"type": "conversation.item.done", "previous_item_id": _before(session, item), "item": shown}))
    return effects


def failed(session: Session, event: ev.Failed, now: float) -> list[ev.Effect]:
    """End an answer that failed. A turn model goes on with the next turn; a unit model has lost its thread and ends."""
    if not _is_current(session, event.fence):
        return []
    effects: list[ev.Effect] = [ev.Send({"type": "error", "error": event.error.body()})]
    if session.speaking is Speaking.RESPONDING:
        effects += _end(session, now, "failed", error=event.error)
    if not session.is_turn_model:
        effects += living.end(session, now, "model_failed")
    return effects


# -- cancelling --------------------------------------------------------------------------------------------------------


def cancel(session: Session, event: ev.CancelResponse, now: float) -> list[ev.Effect]:
    """Stop the answer at the client's word."""
    response = session.response
    if session.speaking is not Speaking.RESPONDING or response is None or event.response_id not in (None, response.id):
        wanted = "no response" if event.response_id is None else f"no response {event.response_id}"
        raise DuplexError("response_cancel_not_active", f"there is {wanted} under way", "response_id")
    return interrupt(session, now, "client_cancelled")


def clear(session: Session, event: ev.ClearOutput, now: float) -> list[ev.Effect]:
    """Stop the answer and what of it is still to be played."""
    response = session.response
    effects = interrupt(session, now, "client_cancelled")
    if response is not None:
        effects.append(ev.Send({"type": "output_audio_buffer.cleared", "response_id": response.id}))
    return effects


def interrupt(session: Session, now: float, reason: str) -> list[ev.Effect]:
    """Stop an answer that is made or played: nothing more of it leaves, and what was not heard is not part of the history."""
    response = session.response
    if response is None:
        return []
    _cut(response, now)
    effects: list[ev.Effect] = []
    if session.speaking is Speaking.RESPONDING:
        session.pending_turns = 0
        effects += _close_item(session, "incomplete")
        effects.append(_tell(session, "response.done", response, "cancelled", reason=reason, usage={}))
        session.fence = replace(session.fence, epoch=session.fence.epoch + 1)
        effects.append(ev.Interrupt(session.fence))
    return effects + _finish_playback(session)


def _cut(response: Response, now: float) -> None:
    """Estimate what was heard of an answer: as much as could be played since its first audio left."""
    if response.started is None:
        return
    left = (now - response.started) * 1000
    for item in response.items:
        for part in item.content:
            if part.audio_ms > left and part.played_ms is None:
                part.played_ms = max(0.0, left)
            left -= part.audio_ms


def played(session: Session, event: ev.Playback, now: float) -> list[ev.Effect]:
    """Take the client's word for what was played."""
    item = session.find(event.item_id)
    if item is None or item.role != "assistant" or not item.content:
        raise DuplexError("playback_item_not_found", f"there is no answer {event.item_id}", "item_id")
    part = item.content[0]
    part.played_ms = None if event.played_ms >= part.audio_ms else float(event.played_ms)
    acknowledged = {"type": "playback.acknowledged", "item_id": item.id, "played_ms": event.played_ms}
    return [ev.Send(acknowledged)]


def _is_current(session: Session, fence: Fence) -> bool:
    """Tell whether something was made for what is in force. A unit model counts no turns: it hears on from one to the next."""
    return fence == session.fence if session.is_turn_model else fence.epoch == session.fence.epoch


# -- shorthands --------------------------------------------------------------------------------------------------------


def _active(session: Session) -> Response:
    assert session.response is not None, "an answer is under way"
    return session.response


def _audio_ms(response: Response) -> float:
    return sum(part.audio_ms for item in response.items for part in item.content)


def _where(session: Session) -> dict[str, Any]:
    """Return the place of the part that grows."""
    response = _active(session)
    item = response.items[-1]
    return {"response_id": response.id, "item_id": item.id, "output_index": len(response.items) - 1, "content_index": 0}


def _before(session: Session, item: Item) -> str | None:
    index = next((index for index, other in enumerate(session.items) if other is item), 0)
    return session.items[index - 1].id if index else None


def _tell(session: Session, kind: str, response: Response, status: str, **facts: Any) -> ev.Send:
    conversation = f"conv_{session.id[-12:]}"
    return ev.Send({"type": kind, "response": response_object(response, status, conversation_id=conversation, **facts)})
