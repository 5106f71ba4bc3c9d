"""What every checkpoint of the family says about itself in its config.json. Read in any process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import ConfigReader

if TYPE_CHECKING:
    from omni_core.stage import ResolvedStage

CODEBOOK_SIZE = 1024
"""Entries of each codebook of the family's codecs, and the code that stands for none."""


@dataclass(frozen=True)
class MossCheckpoint(ABC):
    """The facts of one checkpoint folder that all talkers have."""

    model: ClassVar[str]
    """What messages call the model."""

    folder: Path
    num_codes: int
    """Codes of a frame."""
    codebook_size: int
    pad_code: int
    """Stands for no code."""
    sample_rate: int
    """Of the codec, in Hz."""

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Return the facts of the checkpoint in `folder`.

        Raises:
            ConfigError: config.json is missing, is no JSON, lacks a field or has one of another type.
        """
        return cls.from_reader(ConfigReader.of_folder(folder, cls.model), Path(folder))

    @classmethod
    def of_stage(cls, stage: ResolvedStage) -> Self:
        """Return the facts of a talker's checkpoint as its engine reads them: with the stage's `hf_overrides`.

        Raises:
            ConfigError: As `read`.
        """
        raw = ConfigReader.of_folder(stage.model, cls.model).raw
        return cls.from_config({**raw, **stage.config_overrides}, stage.model)

    @classmethod
    def from_config(cls, raw: Mapping[str, Any], folder: str | Path) -> Self:
        """Return the facts in an already parsed config.json."""
        return cls.from_reader(cls.reader(raw, folder), Path(folder))

    @classmethod
    def reader(cls, raw: Mapping[str, Any], folder: str | Path) -> ConfigReader:
        """Return what reads further fields of an already parsed config.json."""
        return ConfigReader(raw, str(Path(folder) / "config.json"), cls.model)

    @classmethod
    @abstractmethod
    def from_reader(cls, read: ConfigReader, folder: Path) -> Self:
        """Return the facts that a reader finds.

        Raises:
            ConfigError: A field is missing or has another type.
        """

    @property
    def hears(self) -> bool:
        """Whether requests may bring recordings."""
        return True

    def check_frames(self, most: int, *, least: int = 1) -> None:
        """Check that a talker can make frames of this form.

        Args:
            most: The most codes that it makes of a frame.
            least: The least.

        Raises:
            ConfigError: It cannot.
        """
        if not least <= self.num_codes <= most or (self.codebook_size, self.pad_code) != (CODEBOOK_SIZE, CODEBOOK_SIZE):
            raise ConfigError(
                f"frames of {self.num_codes} codes below {self.codebook_size} with the pad {self.pad_code} are not supported",
                where=str(self.folder / "config.json"),
                hint=f"this pipeline takes frames of {least} to {most} codes below {CODEBOOK_SIZE}, which is the pad",
            )

    def check_ids(self, vocab_size: int, *names: str) -> None:
        """Check that special ids are ids of the talker's vocabulary.

        Args:
            vocab_size: Number of text ids.
            names: Fields that hold ids.

        Raises:
            ConfigError: One is not; the message names it.
        """
        for name in names:
            if not 0 <= (found := getattr(self, name)) < vocab_size:
                raise ConfigError(
                    f"the id {found} of {name} is none of a vocabulary of {vocab_size}",
                    where=str(self.folder / "config.json"),
                    hint=f"use an unchanged {self.model} checkpoint",
                )
