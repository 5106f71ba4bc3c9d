"""Read fields of a client's message: of the right type, and nothing that nobody knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from omni_core.suggest import way_out
from omni_duplex.errors import DuplexError


class Fields:
    """A JSON object whose fields are taken one by one; those that are left in the end are unknown.

    Args:
        value: The object.
        path: Where it is in the message, for messages.

    Raises:
        DuplexError: It is no object.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, Mapping):
            raise bad(path or "the message", value, "an object")
        self._value = dict(value)
        self._path = path
        self._known: list[str] = []

    def name(self, field: str) -> str:
        """Return the dotted name of a field."""
        return f"{self._path}.{field}" if self._path else field

    def __contains__(self, field: str) -> bool:
        return field in self._value

    def take(self, field: str, default: Any = None) -> Any:
        """Return a field as it is."""
        self._known.append(field)
        return self._value.pop(field, default)

    def text(self, field: str, default: str | None = None, *, required: bool = False) -> Any:
        """Return a text field.

        Raises:
            DuplexError: It is something else, or must be there and is not.
        """
        value = self.take(field)
        if value is None:
            if required:
                raise DuplexError("missing_required_parameter", f"{self.name(field)} is missing", self.name(field))
            return default
        if not isinstance(value, str):
            raise bad(self.name(field), value, "a text")
        return value

    def number(self, field: str, default: Any, low: float, high: float, *, whole: bool = False) -> Any:
        """Return a number between two others.

        Raises:
            DuplexError: It is none.
        """
        value = self.take(field)
        if value is None:
            return default
        is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:  # neither holds for NaN
            kind = "a whole number" if whole else "a number"
            raise bad(self.name(field), value, f"{kind} from {low:g} to {high:g}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """Return true or false.

        Raises:
            DuplexError: It is neither.
        """
        value = self.take(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad(self.name(field), value, "true or false")
        return value

    def choice(self, field: str, choices: Collection[str], default: Any = None) -> Any:
        """Return one of a few texts.

        Raises:
            DuplexError: It is another one.
        """
        value = self.take(field)
        if value is None:
            return default
        if value not in choices:
            raise bad(self.name(field), value, f"one of {', '.join(choices)}")
        return value

    def refuse(self, field: str, reason: str) -> None:
        """Take a field that only null is accepted for.

        Raises:
            DuplexError: It has a value.
        """
        if self.take(field) is not None:
            raise DuplexError("unsupported_parameter", f"{self.name(field)} is not supported: {reason}", self.name(field))

    def done(self) -> None:
        """Refuse what is left.

        Raises:
            DuplexError: A field is unknown.
        """
        for field in self._value:
            message = f"there is no field {self.name(field)}"
            raise DuplexError("unknown_parameter", message, self.name(field), hint=way_out(field, self._known, "fields"))


def bad(name: str, value: object, wanted: str) -> DuplexError:
    """Return the error of a field with a wrong value."""
    shown = repr(value)
    return DuplexError("invalid_value", f"{name} must be {wanted}, not {shown[:80]}{'...' if len(shown) > 80 else ''}", name)
