"""The errors of Omni: one class per thing that a user or operator can act on.

    OmniError                       exit code 1, HTTP 500
    ├── ConfigError                 2, 400   a flag, a deploy file, a plugin's declaration
    ├── DependencyError             3, 500   a package or plugin that is not there or cannot be used
    ├── RequestError                1, 400   a request that can never work as it is
    │   ├── ContextLengthError      1, 400   it is longer than the model can read
    │   ├── NotFoundError           1, 404   it names something that does not exist
    │   └── UnsupportedError        1, 501   this deployment cannot do it
    └── ServiceError                1, 500   the server's fault
        ├── StageStartError         1, 500   a stage did not become ready
        ├── StageDeadError          1, 503   a stage's process is gone
        ├── OverloadedError         1, 429   no room now; try again later
        └── DeadlineError           1, 504   something took longer than it may

The command line prints `error: WHERE: MESSAGE` and the hint, without a traceback; the server answers with the OpenAI error
object. Both read the class attributes here and nothing else.
"""

from __future__ import annotations


class OmniError(Exception):
    """Carry what went wrong, where, and what to do about it.

    Args:
        message: One sentence that names the thing.
        where: The place: `file:line:column`, a stage, a flag.
        hint: The way out.
        param: The request or configuration field at fault, if there is one.
    """

    exit_code = 1
    http_status = 500
    http_type = "server_error"

    def __init__(self, message: str, *, where: str = "", hint: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.param = param

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.where, self.hint, self.param), dict(self.__dict__)


def _rebuild(kind: type[OmniError], message: str, where: str, hint: str, param: str | None) -> OmniError:
    return kind(message, where=where, hint=hint, param=param)


class ConfigError(OmniError):
    """Report a flag, a deploy file or a declaration that cannot be used."""

    exit_code = 2
    http_status = 400
    http_type = "invalid_request_error"


class DependencyError(OmniError):
    """Report a package or a plugin that is missing or cannot be loaded."""

    exit_code = 3


class RequestError(OmniError):
    """Report a request that can never work as it is."""

    http_status = 400
    http_type = "invalid_request_error"


class ContextLengthError(RequestError):
    """Report a request that, with the answer it asks for, is longer than the model can read."""

    code = "context_length_exceeded"


class NotFoundError(RequestError):
    """Report a request that names something that does not exist."""

    http_status = 404
    http_type = "not_found_error"


class UnsupportedError(RequestError):
    """Report a request for what this deployment cannot do: its platform, a stage's engine or the model lacks it."""

    http_status = 501
    http_type = "not_implemented_error"


class ServiceError(OmniError):
    """Report a failure of the server itself."""


class StageStartError(ServiceError):
    """Report a stage that did not become ready."""


class StageDeadError(ServiceError):
    """Report a stage whose process is gone."""

    http_status = 503
    http_type = "service_unavailable_error"


class OverloadedError(ServiceError):
    """Report that there is no room for a request now."""

    http_status = 429
    http_type = "rate_limit_error"

    def __init__(
        self, message: str, *, retry_after_s: int | None = None, where: str = "", hint: str = "", param: str | None = None
    ):
        super().__init__(message, where=where, hint=hint, param=param)
        self.retry_after_s = retry_after_s
        """After how many seconds there may be room, where that can be told; the server sends it as Retry-After."""


class DeadlineError(ServiceError):
    """Report something that took longer than it may."""

    http_status = 504
    http_type = "timeout_error"


ERROR_CLASSES: dict[str, type[OmniError]] = {
    kind.__name__: kind
    for kind in (
        OmniError,
        ConfigError,
        DependencyError,
        RequestError,
        ContextLengthError,
        NotFoundError,
        UnsupportedError,
        ServiceError,
        StageStartError,
        StageDeadError,
        OverloadedError,
        DeadlineError,
    )
}
"""Every class by name, so that an error can cross a process as (name, message, where, hint, param)."""
