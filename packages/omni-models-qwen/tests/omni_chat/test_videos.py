"""Videos are read and spoken of as transformers does it: the same words, and the same codes of the talker."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="the pipeline's engines are vLLM's")
pytest.importorskip("av", reason="the videos are made with PyAV")

from omni_core import AsyncOmni
from omni_core.testing.conversations import Answer, ask, with_pipeline
from omni_core.testing.videos import make_video

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine_process", "inference"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`:UserWarning"),
]

DATA = Path(__file__).parents[1] / "data"
TEXT = {"type": "text", "text": "What is it?"}
WORDS, FRAMES = 8, 30
VOICES = {"qwen3-omni-moe": "ethan", "qwen2.5-omni": "Chelsie"}
SAMPLING = [
    {"temperature": 0.0, "max_tokens": WORDS, "repetition_penalty": 1.0},
    {"temperature": 0.0, "max_tokens": FRAMES, "repetition_penalty": 1.05},
    {},
]
Case = tuple[int | None, bool]
"""The pitch of the video's sound, which is heard if there is one; and whether an image comes before it."""
SILENT: Case = (None, False)
HEARD: Case = (300, False)
BESIDE_AN_IMAGE: Case = (300, True)


def prompt(folder: Path, case: Case) -> dict[str, Any]:
    pitch, with_image = case
    kinds = ["image_url"] * with_image + ["video_url"]
    image = (folder / "inputs" / "in_a.png").read_bytes()
    media = {
        f"messages[0].content[{n}].{kind}": {"image_url": image, "video_url": make_video(pitch=pitch)}[kind]
        for n, kind in enumerate(kinds)
    }
    parts = [*({"type": kind, kind: {"url": "beside"}} for kind in kinds), TEXT]
    chat = {"messages": [{"role": "user", "content": parts}], "voice": VOICES[folder.name]}
    return {"chat": {**chat, "mm_processor_kwargs": {"use_audio_in_video": pitch is not None}}, "media": media}


class Reference:
    """transformers' own model of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self._folder = folder
        self._is_third = folder.name == "qwen3-omni-moe"
        name = "Qwen3OmniMoeForConditionalGeneration" if self._is_third else "Qwen2_5OmniForConditionalGeneration"
        self._model = getattr(transformers, name).from_pretrained(folder, dtype="float32").eval()
        self._processor = transformers.AutoProcessor.from_pretrained(folder)
        if self._is_third:  # transformers looks for it there, too, and its checkpoints do not have it there
            self._model.talker.config.audio_config = self._model.config.thinker_config.audio_config

    def answer(self, case: Case) -> tuple[list[int], list[Any]]:
        """Return the tokens of the text and the talker's codes, without the one that ended them."""
        inputs = self._inputs(case)
        has_sound = case[0] is not None
        heard: dict[str, Any] = {"use_audio_in_video": has_sound}
        if self._is_third:  # its `generate` tells only the thinker; the talker's positions need it as much
            heard |= {"talker_use_audio_in_video": has_sound, "thinker_eos_token_id": self._model.config.im_end_token_id}
        else:  # by its own name the talker would get it, and refuse it
            inputs["thinker_pixel_values_videos"] = inputs.pop("pixel_values_videos")
        seen: dict[str, Any] = {}
        generate = self._model.talker.generate
        self._model.talker.generate = lambda **given: seen.setdefault("codes", generate(**given))
        text, _ = self._model.generate(
            **inputs,
            **heard,
            speaker=VOICES[self._folder.name],
            thinker_max_new_tokens=WORDS,
            thinker_do_sample=False,
            talker_max_new_tokens=FRAMES + self._is_third,
            talker_do_sample=False,
            talker_repetition_penalty=1.05,
        )
        self._model.talker.generate = generate
        length = inputs["input_ids"].shape[1]
        tokens = getattr(text, "sequences", text)[0, length:].tolist()
        return tokens, self._codes(seen["codes"], length)

    def _inputs(self, case: Case) -> dict[str, Any]:
        from PIL import Image
        from vllm.multimodal.media.audio import load_audio_pyav
        from vllm.multimodal.video import Qwen2VLVideoBackend

        pitch, with_image = case
        data = make_video(pitch=pitch)
        files: dict[str, Any] = {"videos": [Qwen2VLVideoBackend.load_bytes(data)[0]]}
        content = [{"type": "video", "video": ""}, TEXT]
        if with_image:
            content.insert(0, {"type": "image", "image": ""})
            files["images"] = [Image.open(self._folder / "inputs" / "in_a.png").convert("RGB")]
        if pitch is not None:
            sound = np.ravel(load_audio_pyav(io.BytesIO(data), sr=None)[0])
            files["audio"] = [np.pad(sound, (0, -len(sound) % 160))]  # vLLM fills the last step of the spectrogram
        messages = [{"role": "user", "content": content}]
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        options = {"use_audio_in_video": pitch is not None, "do_sample_frames": False, "return_tensors": "pt"}
        return dict(self._processor(text=[text], **files, **options))

    def _codes(self, found: Any, prompt: int) -> list[Any]:
        import torch

        if not self._is_third:
            codes: list[Any] = [[code] for code in found[0, prompt + 2 :].tolist() if code not in (8292, 8294)]
            return codes
        rows = torch.stack([states[-1] for states in found.hidden_states if states[-1] is not None], dim=1)[0]
        codes = rows[rows[:, 0] != 2150][:FRAMES].tolist()
        return codes


@pytest.mark.parametrize(
    ("name", "cases"),
    [("qwen3-omni-moe", [SILENT, HEARD, BESIDE_AN_IMAGE]), ("qwen2.5-omni", [SILENT])],
    ids=["qwen3", "qwen2.5"],
)
def test_answers_to_videos_are_transformers_alone_and_at_once(name: str, cases: list[Case]) -> None:
    """vLLM's own positions of a video with its sound are others than transformers' in Qwen2.5-Omni, see docs/qwen-omni.md."""
    folder = DATA / name
    reference = Reference(folder)
    wanted = [reference.answer(case) for case in cases]

    async def work(omni: AsyncOmni) -> list[Answer]:
        prompts: list[Mapping[str, Any]] = [prompt(folder, case) for case in cases]
        alone = [await ask(omni, one, SAMPLING) for one in prompts]
        return [*alone, *await asyncio.gather(*(ask(omni, one, SAMPLING) for one in prompts))]

    answers = with_pipeline(folder, work)

    for (tokens, codes), answer in zip(wanted * 2, answers, strict=True):
        assert answer.token_ids == tokens
        assert len(codes) > 2
        assert answer.codes == codes
