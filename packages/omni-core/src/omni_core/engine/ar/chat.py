"""Conversations: from a request's JSON to vLLM's own prompt, with vLLM's renderer and parsers. Runs in the stage host.

The payload's `chat` is the body of OpenAI's chat completions as far as it says what to write (sampling parameters come apart
from it), and `voice`; files travel beside it, see `omni_core.chat`. What cannot be used is told with its place in the messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from omni_core.chat import CHAT, MEDIA
from omni_core.engine.ar import media
from omni_core.engine.ar.mm_facts import FactCache, prompt_counts
from omni_core.engine.ar.reply import ChatInput, Reply
from omni_core.engine.vllm_bridge import ChatCompletionRequest, ErrorResponse, OnlineRenderer, VLLMClientError
from omni_core.errors import ConfigError, ContextLengthError, RequestError
from omni_core.payload import Payload
from omni_core.stage import ResolvedStage

_OWN = ("voice",)
"""Fields of a conversation that are not vLLM's."""
MESSAGES = "messages"
_UNUSABLE = "the conversation cannot be used: "
_FIELDS = ("tools", "tool_choice", "response_format", "structured_outputs", "chat_template_kwargs", "reasoning_effort")
"""Fields that vLLM's errors may name; whatever else they name is somewhere in the messages."""
_TOO_LONG = ("context length", "max_model_len", "longer than the maximum")


class ChatRenderer:
    """Render the conversations of one stage.

    Args:
        stage: The stage; `tool_call_parser`, `reasoning_parser` and `chat_template` of its engine arguments are read here.
        llm: Its AsyncLLM.

    Raises:
        ConfigError: vLLM has no such parser, or the template cannot be read.
    """

    def __init__(self, stage: ResolvedStage, llm: Any) -> None:
        media.install(llm.renderer)
        self._where = f"stage {stage.name}"
        self._config = llm.model_config
        self._tokenizer = llm.renderer.tokenizer
        self._facts = FactCache()
        self._media = media.MediaTable()
        tools = stage.engine_args.get("tool_call_parser")
        try:
            self._renderer = OnlineRenderer(
                llm.model_config,
                llm.renderer,
                request_logger=None,
                chat_template=_template(stage.engine_args.get("chat_template")),
                chat_template_content_format="auto",
                trust_request_mm_kwargs=True,  # the server lets through what may be set
                enable_auto_tools=tools is not None,
                tool_parser=tools,
                reasoning_parser=stage.engine_args.get("reasoning_parser"),
            )
        except (KeyError, TypeError, ValueError, VLLMClientError) as error:
            hint = "correct tool_call_parser and reasoning_parser; the names are vLLM's"
            raise ConfigError(f"vLLM refuses the parsers: {error}", where=self._where, hint=hint) from error

    async def render(self, payload: Payload, sampling: Mapping[str, Any]) -> ChatInput:
        """Return a conversation as the engine takes it.

        Raises:
            RequestError: It cannot be used; `param` names the place.
        """
        try:
            body = json.loads(payload[CHAT])
        except (ValueError, TypeError, RecursionError) as error:
            raise RequestError("the conversation is not JSON", param=CHAT, hint="send JSON as bytes") from error
        if not isinstance(body, dict) or not body.get("messages"):
            raise RequestError("a conversation needs at least one message", param=MESSAGES, hint="send messages")
        own = {name: body.pop(name) for name in _OWN if name in body}
        with self._media.lent(body["messages"], payload.get(MEDIA) or {}) as messages:
            request = self._request({**body, "messages": messages})
            try:
                prompt = await self._render(request)
            except RequestError as error:
                await self._blame(messages, error)
                raise
            facts = self._facts.facts(prompt)
            if facts is None:  # what the engine's cache holds already is not here, and too long ago for ours
                prompt = await self._render(request, skip_mm_cache=True)
                facts = self._facts.facts(prompt) or {}
        ids = prompt["prompt_token_ids"]
        return ChatInput(
            prompt_token_ids=ids,
            handoff={"prompt_token_ids": np.asarray(ids, np.int64), **facts, **own},
            # A parser may look for special tokens.
            sampling={} if request.skip_special_tokens else {"skip_special_tokens": False},
            prompt=prompt,
            reply=self._reply(request, ids, prompt_counts(prompt), sampling.get("logprobs") or 0),
            structured_outputs=_structure(request),
        )

    def _request(self, body: dict[str, Any]) -> Any:
        try:
            request = ChatCompletionRequest.model_validate(body)
        except ValidationError as error:
            raise _invalid(error) from error
        except (ValueError, VLLMClientError) as error:
            raise refusal(error) from error
        if unknown := sorted(request.model_extra or ()):
            raise RequestError(f"a conversation has no field {unknown[0]!r}", param=unknown[0], hint="leave it out")
        if request.tools and request.tool_choice != "none" and self._renderer.parser is None:
            hint = "the operator can name vLLM's parser of this model with --tool-call-parser"
            raise RequestError("this server cannot read calls of tools", param="tools", hint=hint)
        return request

    async def _render(self, request: Any, *, skip_mm_cache: bool = False) -> Any:
        try:
            rendered = await self._renderer.render_chat(request, skip_mm_cache=skip_mm_cache)
        except RequestError:
            raise
        except Exception as error:  # the template, the tokenizer and the processors are the checkpoint's: they raise anything
            raise refusal(error) from error
        if isinstance(rendered, ErrorResponse):
            raise _as_told(rendered.error.message, rendered.error.param)
        return rendered[1][0]

    async def _blame(self, messages: list[Any], error: RequestError) -> None:
        """Find the file that a conversation is refused for: the one that is refused by itself, too.

        Raises:
            RequestError: There is one; `param` names its place.
        """
        if error.param != MESSAGES or isinstance(error, ContextLengthError):
            return
        for part, place, kind in media.parts_of(messages):
            alone = self._request({"messages": [{"role": "user", "content": [part]}]})
            try:
                await self._render(alone, skip_mm_cache=True)
            except RequestError as found:
                if found.message == error.message and found.param == MESSAGES:
                    raise media.unreadable(place, kind, error.message.removeprefix(_UNUSABLE)) from error

    def _reply(self, request: Any, ids: list[int], counts: dict[str, float], top: int) -> Reply:
        parser, engine = None, {}
        if (kind := self._renderer.parser) is not None:
            kwargs = self._renderer.effective_chat_template_kwargs(request)
            parser = kind(self._tokenizer, request.tools, chat_template_kwargs=kwargs, model_config=self._config)
            engine = {"reasoning_ended": request.resolve_reasoning_ended(parser, ids)}
            if parser.reasoning_parser is not None:
                engine["reasoning_parser_kwargs"] = {"chat_template_kwargs": kwargs}
        return Reply(self._tokenizer, parser, request, ids, counts, engine, top)


def _structure(request: Any) -> Any:
    try:
        return request.extract_structured_outputs()
    except (ValueError, VLLMClientError) as error:
        raise refusal(error, "response_format") from error


def _template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the template cannot be read: {error}", where="chat_template", hint="name a Jinja file") from error


def refusal(error: Exception, param: str = MESSAGES) -> RequestError:
    """Return what a renderer, a processor or a check of vLLM raised as the request's fault.

    Processors wrap their errors in one that shows all data; the first of them says what is wrong.
    """
    found: BaseException = error
    while not isinstance(found, RequestError) and (below := found.__cause__) is not None:
        found = below
    if isinstance(found, RequestError):
        return found
    parameter = str(getattr(error, "parameter", None) or "").partition(".")[0]
    text = str(found.args[0]) if found.args and hasattr(found, "parameter") else str(found)
    return _as_told(text or type(found).__name__, parameter if parameter in _FIELDS else param)


def _invalid(error: ValidationError) -> RequestError:
    """Return pydantic's first finding, with its place."""
    first = error.errors()[0]
    names = [str(part) for part in first["loc"] if "[" not in str(part) and "(" not in str(part)]
    place = ".".join(names[:6]) or MESSAGES
    return RequestError(f"`{place}`: {first['msg'][:1].lower()}{first['msg'][1:]}"[:500], param=place, hint="correct it")


def _as_told(text: str, param: str | None) -> RequestError:
    text = " ".join(text.split())[:500]
    if any(phrase in text for phrase in _TOO_LONG):
        return ContextLengthError(text, param=MESSAGES, hint="shorten the conversation")
    return RequestError(f"{_UNUSABLE}{text}", param=param or MESSAGES, hint="correct it")
