"""For tests of duplex models and of what serves them: a clock to turn by hand, and models that do as they are told."""

from omni_duplex.testing.clock import VirtualClock
from omni_duplex.testing.ears import LoudEar
from omni_duplex.testing.scripted import ScriptedModel, ScriptedTurnModel
from omni_duplex.testing.sdk import unknown_fields
from omni_duplex.testing.words import PlainDialect

__all__ = ["LoudEar", "PlainDialect", "ScriptedModel", "ScriptedTurnModel", "VirtualClock", "unknown_fields"]
