"""The form that a request fills in: fixed fields before the text. Those that are not given say `None`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = {
    "instructions": "Instruction",
    "tokens": "Tokens",
    "quality": "Quality",
    "sound_event": "Sound Event",
    "ambient_sound": "Ambient Sound",
    "language": "Language",
}
"""Fields between the reference and the text, in the order of the form: names of the request to names of the form."""

HEAD = "<user_inst>\n- Reference(s):\n"
"""What comes before the reference."""
NOTHING = "None"
TAIL = "\n</user_inst>"
"""What comes after the text."""


def fields_text(fields: Mapping[str, Any]) -> str:
    """Return what stands between the reference and the text; a missing, empty or blank value is `None`."""
    values = {label: str(fields.get(name) or "").strip() or NOTHING for name, label in FIELDS.items()}
    return "".join(f"\n- {label}:\n{value}" for label, value in values.items()) + "\n- Text:\n"
