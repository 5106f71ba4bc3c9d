"""LoRA adapters of an AR stage: known to its engine by number, loaded before the first request that wants one. In the host."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from omni_core.deploy.lora import check_adapter_request
from omni_core.engine.vllm_bridge import EngineDeadError, LoRARequest
from omni_core.errors import RequestError
from omni_core.request import LoraAdapter
from omni_core.stage import ResolvedStage

logger = logging.getLogger(__name__)


class Adapters:
    """Turn adapters into what vLLM takes.

    Args:
        stage: The stage.
        llm: Its engine, vLLM's AsyncLLM.
    """

    def __init__(self, stage: ResolvedStage, llm: Any) -> None:
        self._stage = stage
        self._llm = llm
        self._numbers: dict[LoraAdapter, int] = {}
        self._loaded: dict[str, LoraAdapter] = {}
        self._turn = asyncio.Lock()
        """Held while an adapter is loaded whose name is new: of two with one name the second finds the first."""

    async def request(self, adapter: LoraAdapter) -> Any:
        """Return vLLM's LoRARequest, its adapter being loaded.

        It is loaded here, by a call of its own: where vLLM has to load one within a step, a bad one ends the engine.

        Raises:
            RequestError: The stage takes no adapters, this one cannot be loaded, or its name stands for another one.
        """
        check_adapter_request(self._stage)
        if adapter.name in self._loaded:
            return await self._load(adapter)
        async with self._turn:
            return await self._load(adapter)

    async def _load(self, adapter: LoraAdapter) -> Any:
        known = self._loaded.get(adapter.name, adapter)
        if known != adapter:
            # vLLM keeps what it has computed of prompts by the adapter's name.
            raise _refusal(f"the adapter name {adapter.name!r} stands for {known.path} already", "choose another name")
        number = self._numbers.setdefault(adapter, len(self._numbers) + 1)
        found = LoRARequest(lora_name=adapter.name, lora_int_id=number, lora_path=adapter.path)
        try:
            await self._llm.add_lora(found)
        except EngineDeadError:
            raise
        except Exception as error:  # vLLM wraps whatever its worker raised; the request that named the adapter fails
            logger.warning("stage %s: adapter %r cannot be loaded", self._stage.name, adapter.name, exc_info=error)
            hint = "check its files, its rank against max_lora_rank, and that it was made for this model"
            raise _refusal(f"the adapter {adapter.name!r} in {adapter.path} cannot be loaded: {error}", hint) from error
        self._loaded[adapter.name] = adapter
        return found


def _refusal(message: str, hint: str) -> RequestError:
    return RequestError(message, param="lora_request", hint=hint)
