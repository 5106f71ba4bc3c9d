"""The user's turn: audio in, speech found, turns committed."""

from __future__ import annotations

from omni_duplex.errors import LIMIT, DuplexError
from omni_duplex.protocol.objects import item_object
from omni_duplex.session import answering
from omni_duplex.session import events as ev
from omni_duplex.session.state import Input, Item, Part, Session, Speaking, joined
from omni_duplex.session.timers import arm, disarm

WAITING = "user_silent"
"""Runs out when the user said nothing for `idle_timeout_ms` after an answer."""


def append(session: Session, event: ev.Append, now: float) -> list[ev.Effect]:
    """Take more audio, within what a session may have pending."""
    limit = session.limits.max_pending_input_bytes_per_session
    if session.pending_bytes + event.pcm.nbytes > limit:
        raise DuplexError(
            "input_backpressure",
            f"{session.pending_bytes} bytes of audio wait and at most {limit} may: these {event.pcm.nbytes} were dropped",
            kind=LIMIT,
            retryable=True,
            hint="commit, or send no faster than the audio plays",
        )
    session.heard += len(event.pcm)
    session.uncommitted += len(event.pcm)
    session.pending_bytes += event.pcm.nbytes
    if not session.is_turn_model:
        return [ev.Feed(event.pcm)]
    session.buffer.append(event.pcm)
    _forget_silence(session)
    return []


def _forget_silence(session: Session) -> None:
    """Drop what came too long before any speech to be of use to it."""
    detection = session.config.turn_detection
    if detection is None or session.input is Input.SPEAKING:
        return
    kept = (detection.prefix_padding_ms + detection.silence_duration_ms) * session.capabilities.input_rate // 1000
    total = sum(map(len, session.buffer))
    while session.buffer and total - len(session.buffer[0]) >= kept:
        dropped = session.buffer.pop(0)
        total -= len(dropped)
        session.pending_bytes -= dropped.nbytes


def consumed(session: Session, event: ev.Consumed, now: float) -> list[ev.Effect]:
    """Give back what a unit model has heard."""
    session.pending_bytes = max(0, session.pending_bytes - event.nbytes)
    return []


def clear(session: Session, event: ev.ClearInput, now: float) -> list[ev.Effect]:
    """Forget the audio since the last commit, and speech that is under way."""
    _empty(session)
    session.input, session.input_item_id = Input.IDLE, ""
    return [ev.ForgetInput(), ev.Send({"type": "input_audio_buffer.cleared"})]


def _empty(session: Session) -> None:
    session.pending_bytes -= sum(chunk.nbytes for chunk in session.buffer)
    session.buffer.clear()
    session.uncommitted = 0


def speech_started(session: Session, event: ev.SpeechStarted, now: float) -> list[ev.Effect]:
    """Note that the user speaks, and stop the model if it may be interrupted."""
    detection = session.config.turn_detection
    if detection is None or session.input is Input.SPEAKING:
        return []
    session.input = Input.SPEAKING
    session.input_item_id = session.new_id("item")
    start = max(0, event.at_ms - detection.prefix_padding_ms)
    effects = disarm(session, WAITING)
    effects.append(
        ev.Send(
            {"type": "input_audio_buffer.speech_started", "audio_start_ms": start, "item_id": session.input_item_id},
        )
    )
    if detection.interrupt_response and session.capabilities.barge_in and session.speaking is not Speaking.SILENT:
        effects += answering.interrupt(session, now, "turn_detected")
    return effects


def speech_stopped(session: Session, event: ev.SpeechStopped, now: float) -> list[ev.Effect]:
    """Note that the user is silent: the turn is over, and a turn model answers it."""
    detection = session.config.turn_detection
    if detection is None or session.input is not Input.SPEAKING:
        return []
    item_id = session.input_item_id
    stopped = {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": event.at_ms, "item_id": item_id}
    effects: list[ev.Effect] = [ev.Send(stopped), *_commit(session)]
    if detection.create_response:
        effects += answering.answer_turn(session, now)
    return effects


def signalled(session: Session, event: ev.Signal, now: float) -> list[ev.Effect]:
    """Take the client's word for who speaks, where nothing here listens for it."""
    if session.config.turn_detection is not None:
        raise DuplexError(
            "turn_detection_active",
            "turn detection of this server is on, so that it does not take the client's word",
            hint="set turn_detection to null",
        )
    if event.speaks:
        if session.speaking is Speaking.SILENT or not session.capabilities.barge_in:
            return []
        return answering.interrupt(session, now, "turn_detected")
    if session.uncommitted == 0:
        return []
    return [*_commit(session), *answering.answer_turn(session, now)]


def commit(session: Session, event: ev.Commit, now: float) -> list[ev.Effect]:
    """End the user's turn at the client's word. It asks for no answer: `response.create` does."""
    if session.uncommitted == 0:
        raise DuplexError(
            "input_audio_buffer_commit_empty",
            "there is no audio to commit",
            hint="append audio first; what speech detection has committed needs no commit",
        )
    return _commit(session)


def _commit(session: Session) -> list[ev.Effect]:
    item = Item(session.input_item_id or session.new_id("item"), "message", "user")
    pcm = joined(session.buffer)
    item.content.append(Part("input_audio", audio=pcm if session.is_turn_model else None, audio_ms=session.ms(len(pcm))))
    before = session.last_item_id
    session.items.append(item)
    session.input, session.input_item_id = Input.IDLE, ""
    _empty(session)
    bound_history(session)
    effects: list[ev.Effect] = [
        ev.Send({"type": "input_audio_buffer.committed", "previous_item_id": before, "item_id": item.id}),
        ev.Send({"type": "conversation.item.added", "previous_item_id": before, "item": item_object(item)}),
        ev.Send({"type": "conversation.item.done", "previous_item_id": before, "item": item_object(item)}),
    ]
    if session.config.transcription is not None and len(pcm):
        effects.append(ev.Transcribe(item.id, pcm))
    return effects


def bound_history(session: Session) -> None:
    """Keep only the words of old turns whose audio and images would be too much."""
    total = 0
    for item in reversed(session.items):
        for part in item.content:
            total += len(part.image_url) + (0 if part.audio is None else part.audio.nbytes)
            if total > session.limits.history_audio_bytes and item is not session.items[-1]:
                part.audio, part.image_url = None, ""


def transcribed(session: Session, event: ev.Transcribed, now: float) -> list[ev.Effect]:
    """Put the words of a user's item down, unless the item is gone."""
    item = session.find(event.item_id)
    if item is None or not item.content:  # it is gone; a client may have made another one with its id
        return []
    base = {"item_id": item.id, "content_index": 0}
    kind = "conversation.item.input_audio_transcription"
    if event.error is not None:
        return [ev.Send({"type": f"{kind}.failed", **base, "error": event.error.body()})]
    item.content[0].text = event.text
    usage = {"type": "duration", "seconds": event.seconds}
    return [ev.Send({"type": f"{kind}.completed", **base, "transcript": event.text, "usage": usage})]


def await_user(session: Session, now: float) -> list[ev.Effect]:
    """Start to wait for the user's next word, where the session has a limit for that."""
    detection = session.config.turn_detection
    if detection is None or detection.idle_timeout_ms is None or session.input is Input.SPEAKING:
        return []
    return [arm(session, WAITING, now + detection.idle_timeout_ms / 1000)]


def user_silent(session: Session, event: ev.Timer, now: float) -> list[ev.Effect]:
    """Take the user's silence as a turn, so that the model can ask whether somebody is there."""
    if session.is_over or session.uncommitted == 0 or session.speaking is not Speaking.SILENT:
        return []
    session.input_item_id = session.new_id("item")
    end = session.ms(session.heard)
    start = max(0, end - session.ms(session.uncommitted))
    triggered = {"type": "input_audio_buffer.timeout_triggered", "audio_start_ms": start, "audio_end_ms": end}
    effects: list[ev.Effect] = [ev.Send({**triggered, "item_id": session.input_item_id}), *_commit(session)]
    return effects + answering.answer_turn(session, now)
