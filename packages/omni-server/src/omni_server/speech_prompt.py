"""Turn the fields of a speech request into a prompt: fetch its reference audio, and find the voice that it names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from omni_core.errors import RequestError
from omni_core.speech import ReferenceAudio, SpeechPrompt, SpeechTraits
from omni_server.media import fold_channels, load_reference

if TYPE_CHECKING:
    from omni_server.context import ServerContext
    from omni_server.protocol import SpeechOptions
    from omni_server.voice_file import Voice

_OTHER_WAYS = ("ref_audio", "ref_text", "speaker_embedding")
"""Fields that say a voice by themselves."""


async def make_prompt(context: ServerContext, speech: SpeechOptions, text: str, traits: SpeechTraits) -> SpeechPrompt:
    """Return the prompt of a request.

    Raises:
        RequestError: The voice is not known, or its recording cannot be used.
    """
    embedding = speech.speaker_embedding
    prompt = SpeechPrompt(
        text=text,
        voice=speech.voice_name,
        language=speech.language,
        instructions=speech.instructions,
        task_type=speech.task_type,
        ref_audio=await _reference(context, speech, traits),
        ref_text=speech.ref_text,
        ref_audio_2=await _second_reference(context, speech, traits),
        x_vector_only_mode=speech.x_vector_only_mode,
        speaker_embedding=None if embedding is None else tuple(embedding),
        non_streaming_mode=speech.non_streaming_mode,
        ambient_sound=speech.ambient_sound,
        sound_event=speech.sound_event,
        quality=speech.quality,
        duration_seconds=speech.duration_seconds,
        max_new_tokens=speech.max_new_tokens,
        seed=speech.seed,
        initial_codec_chunk_frames=speech.initial_codec_chunk_frames,
        extra=speech.extra_params or {},
    )
    voice = await _named_voice(context, speech, traits)
    return prompt if voice is None else with_voice(prompt, voice, traits)


async def _reference(context: ServerContext, speech: SpeechOptions, traits: SpeechTraits) -> ReferenceAudio | None:
    if speech.ref_audio is None:
        return None
    sources = [speech.ref_audio] if isinstance(speech.ref_audio, str) else speech.ref_audio
    if len(sources) != 1:
        raise RequestError(f"`ref_audio` lists {len(sources)} clips", param="ref_audio", hint="give one")
    if not traits.clones:
        hint = "use a checkpoint that clones voices, or leave ref_audio out"
        raise RequestError("the served model does not imitate a voice", param="ref_audio", hint=hint)
    return await load_reference(sources[0], context.settings, traits, "ref_audio", context.references)


async def _second_reference(context: ServerContext, speech: SpeechOptions, traits: SpeechTraits) -> ReferenceAudio | None:
    name = "ref_audio_2"
    if speech.ref_audio_2 is None:
        return None
    if name not in traits.accepts:  # nothing is fetched in vain
        raise RequestError(f"`{name}` has no effect with the served model", param=name, hint="leave it out")
    return await load_reference(speech.ref_audio_2, context.settings, traits, name, context.references)


async def _named_voice(context: ServerContext, speech: SpeechOptions, traits: SpeechTraits) -> Voice | None:
    """Return the voice that a request names; None where the model has it, or its adapter has to judge the name."""
    name, library = speech.voice_name, context.voices
    names_freely = "voice" in traits.accepts and not traits.voices
    if name is None or not traits.clones or names_freely or library.is_own(name):
        return None
    others = [field for field in _OTHER_WAYS if getattr(speech, field) is not None]
    found = await library.find(name)
    if found is None:
        if others:
            return None
        raise await library.unknown(name)
    if others:
        hint = "give one of the two"
        raise RequestError(f"`{others[0]}` and the voice {found.name!r} say two voices", param=others[0], hint=hint)
    return found


def with_voice(prompt: SpeechPrompt, voice: Voice, traits: SpeechTraits) -> SpeechPrompt:
    """Return a prompt that speaks in a stored voice: as if its recording and words had come with the request.

    Raises:
        RequestError: The model does not take what the voice consists of.
    """
    if voice.audio is None:
        if "speaker_embedding" not in traits.accepts:
            hint = "use a voice that was uploaded as audio"
            raise RequestError(f"the served model cannot use the embedding of {voice.name!r}", param="voice", hint=hint)
        return replace(prompt, voice=None, speaker_embedding=voice.embedding)
    samples = voice.audio.samples
    heard = ReferenceAudio(fold_channels(samples.reshape(len(samples), -1), traits), voice.audio.sample_rate)
    without_words = prompt.x_vector_only_mode
    if voice.ref_text is None and without_words is None and traits.reference_needs_text:
        without_words = True
    words = None if without_words or "ref_text" not in traits.accepts else voice.ref_text
    return replace(prompt, voice=None, ref_audio=heard, ref_text=words, x_vector_only_mode=without_words)
