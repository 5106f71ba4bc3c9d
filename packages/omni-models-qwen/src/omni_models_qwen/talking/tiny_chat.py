"""What the tiny checkpoints of models for conversations have in common beside tensors: template, processor, ids of marks.

`marks` are a model's names for what stands around and for media, by the names that its tokenizer's configuration has for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_core.modelkit.tiny_weights import write_json

_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if 'audio' in part.type -%}audio_bos_token+audio_token+audio_eos_token
{%- elif 'image' in part.type -%}vision_bos_token+image_token+vision_eos_token
{%- elif 'video' in part.type -%}vision_bos_token+video_token+vision_eos_token
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def chat_template(marks: Mapping[str, str]) -> str:
    """Return the template of conversations."""
    text = _TEMPLATE
    for name, mark in marks.items():
        text = text.replace(f"{name}+", mark).replace(f"+{name}", mark).replace(name, mark)
    return text


def tokenizer_fields(marks: Mapping[str, str]) -> dict[str, Any]:
    """Return what the tokenizer's configuration says of the marks."""
    return {**marks, "extra_special_tokens": marks}


def media_ids(marks: Mapping[str, str], ids: Mapping[str, int], *, kind: str, positions_per_second: int) -> dict[str, int]:
    """Return what thinker and talker are both told about media.

    Args:
        marks: The marks.
        ids: Of the tokenizer.
        kind: How names of ids end that stand for media themselves, `id` or `index`.
        positions_per_second: Temporal positions of a second of video.
    """
    found = {f"{medium}_token_{kind}": ids[marks[f"{medium}_token"]] for medium in ("audio", "image", "video")}
    for medium in ("audio", "vision"):
        for ours, theirs in (("bos", "start"), ("eos", "end")):
            found[f"{medium}_{theirs}_token_id"] = ids[marks[f"{medium}_{ours}_token"]]
    return {**found, "position_id_per_seconds": positions_per_second, "seconds_per_chunk": 2}


def text_ends(ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the ids that begin, fill and end a text, as generation_config.json has them."""
    end = ids["<|endoftext|>"]
    return {"bos_token_id": end, "pad_token_id": end, "eos_token_id": [ids["<|im_end|>"], end]}


def processor(name: str, *, patch_size: int, image_mean: Sequence[float], image_std: Sequence[float]) -> dict[str, Any]:
    """Return preprocessor_config.json of the processor with this name."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": name,
        "chunk_length": 300,
        "feature_size": 128,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "padding_side": "right",
        "padding_value": 0.0,
        "dither": 0.0,
        "return_attention_mask": True,
        "sampling_rate": 16000,
        "image_mean": list(image_mean),
        "image_std": list(image_std),
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "merge_size": 2,
        "patch_size": patch_size,
        "temporal_patch_size": 2,
    }


def write_settings(
    folder: Path, marks: Mapping[str, str], *, config: Any, generation: Mapping[str, Any], processor: Mapping[str, Any]
) -> None:
    """Write the files that say how the checkpoint is to be used."""
    for name, value in (("config", config), ("generation_config", generation), ("preprocessor_config", processor)):
        write_json(folder / f"{name}.json", value)
    (folder / "chat_template.jinja").write_text(chat_template(marks), encoding="utf-8")
