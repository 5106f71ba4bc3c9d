"""A weight transfer backend for CPUs: weights come as safetensors files in a folder that the trainer writes to.

Importing this module registers it with vLLM as `folder`, which is what a plugin does for its own backend. A stage whose model
class is named as this module's `TinyTalker` has it in its engine core.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from omni_core.testing.tiny_ar import TinyTalker

__all__ = ["FolderTransfer", "TinyTalker"]

BACKEND = "folder"


@dataclass
class FolderInit(WeightTransferInitInfo):
    """Where the trainer writes."""

    folder: str


@dataclass
class FolderUpdate(WeightTransferUpdateInfo):
    """Which file holds a part of the weights, by the checkpoint's names."""

    file: str


class FolderTransfer(WeightTransferEngine[FolderInit, FolderUpdate]):
    """Load weights from files."""

    init_info_cls = FolderInit
    update_info_cls = FolderUpdate
    _folder: Path | None = None

    def init_transfer_engine(self, init_info: FolderInit) -> None:
        """Remember the folder."""
        self._folder = Path(init_info.folder)

    def start_weight_update(self) -> None:
        """Make the model ready to be loaded again."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one file; nothing has to be waited for on a CPU."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FolderUpdate) -> None:
        """Load one file."""
        if self._folder is None:
            raise RuntimeError("init_weight_transfer_engine comes first")
        self.model.load_weights(load_file(self._folder / update_info.file).items())

    def finish_weight_update(self) -> None:
        """Put the loaded weights to use."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Forget the folder."""
        self._folder = None


WeightTransferEngineFactory.register_engine(BACKEND, FolderTransfer)
