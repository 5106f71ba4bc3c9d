"""The written answer: text, reasoning, calls of tools, log probabilities, from what the engine gave. Runs in the stage host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_core.runner import EngineInput, StageOutput

_LOWEST = -9999.0
"""In place of minus infinity, which JSON does not have."""


class Reply:
    """Read one answer piece by piece.

    Args:
        tokenizer: The stage's.
        parser: vLLM's parser for this request; None where the text is the answer.
        request: vLLM's request, as the parser changed it.
        prompt_ids: The prompt.
        counts: Numbers of the prompt, for the last output's metrics.
        engine: Arguments of `add_request` that depend on the parser.
        top: How many of the most likely tokens are told where log probabilities are asked for; -1 is all.
    """

    def __init__(
        self,
        tokenizer: Any,
        parser: Any,
        request: Any,
        prompt_ids: Sequence[int],
        counts: Mapping[str, float],
        engine: Mapping[str, Any],
        top: int,
    ) -> None:
        self.engine = dict(engine)
        self._tokenizer = tokenizer
        self._top = top
        self._parser = parser
        self._request = request
        self._prompt_ids = list(prompt_ids)
        self._counts = dict(counts)
        self._ids: list[int] = []
        self._has_called = False

    def read(self, output: StageOutput, found: Any) -> None:
        """Complete an output: its text, its `reply`, and with the last one its finish reason and numbers.

        Args:
            output: What is handed on; text and token ids are the engine's.
            found: vLLM's RequestOutput, with new tokens only.
        """
        answer = found.outputs[0]
        hidden = self._parser is not None and not self._request.include_reasoning
        if answer.logprobs and not hidden:
            output.reply["logprobs"] = logprob_entries(answer.token_ids, answer.logprobs, self._tokenizer, self._top)
        if self._parser is not None:
            self._parse(output)
        if output.finished:
            self._end(output, found.num_cached_tokens)

    def _parse(self, output: StageOutput) -> None:
        self._ids += output.token_ids
        delta = self._parser.parse_delta(
            delta_text=output.text,
            delta_token_ids=output.token_ids,
            request=self._request,
            prompt_token_ids=self._prompt_ids,
            finished=output.finished,
        )
        output.text = (delta.content or "") if delta is not None else ""
        if delta is not None and delta.reasoning:
            output.reply["reasoning"] = delta.reasoning
        calls = delta.tool_calls if delta is not None else ()
        if self._request.parallel_tool_calls is False:
            calls = [call for call in calls if call.index == 0]
        if calls:
            self._has_called = True
            output.reply["tool_calls"] = [call.model_dump(exclude_none=True) for call in calls]

    def _end(self, output: StageOutput, cached: int | None) -> None:
        output.metrics |= self._counts
        if cached:
            output.metrics["cached_tokens"] = float(cached)
        if self._parser is not None and self._parser.reasoning_parser is not None:
            output.metrics["reasoning_tokens"] = float(self._parser.count_reasoning_tokens(tuple(self._ids)))
        # A tool that the request names is no choice of the model's: OpenAI then says `stop`.
        named = self._request.tool_choice is not None and not isinstance(self._request.tool_choice, str)
        if self._has_called and not named and output.finish_reason == "stop":
            output.finish_reason = "tool_calls"


@dataclass(frozen=True)
class ChatInput(EngineInput):
    """A rendered conversation, and what reads the answer to it."""

    prompt: Any = None
    """vLLM's own engine input: token ids and processed files."""
    reply: Reply | None = None
    structured_outputs: Any = None
    """The form that the answer must have, as vLLM's StructuredOutputsParams."""


def logprob_entries(token_ids: Sequence[int], steps: Sequence[Any], tokenizer: Any, top: int) -> list[dict[str, Any]]:
    """Return log probabilities in OpenAI's form, an entry for each token.

    Args:
        token_ids: The tokens that were sampled.
        steps: For each of them, a mapping of candidates to vLLM's Logprob; the sampled one is among them, in front.
        tokenizer: Where a candidate's text comes from if vLLM did not decode it.
        top: How many candidates an entry lists; -1 is all.
    """
    return [_entry(token, step, tokenizer, top) for token, step in zip(token_ids, steps, strict=True)]


def _entry(token_id: int, step: Any, tokenizer: Any, top: int) -> dict[str, Any]:
    candidates = {} if step is None else dict(step)
    chosen = candidates.get(token_id)
    likely = sorted(candidates.items(), key=lambda item: item[1].rank)[: None if top < 0 else top]
    return {
        **_candidate(token_id, chosen, tokenizer),
        "top_logprobs": [_candidate(other, found, tokenizer) for other, found in likely],
    }


def _candidate(token_id: int, found: Any, tokenizer: Any) -> dict[str, Any]:
    text = found.decoded_token if found is not None else None
    if text is None:
        text = tokenizer.decode([token_id])
    logprob = _LOWEST if found is None else max(float(found.logprob), _LOWEST)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
