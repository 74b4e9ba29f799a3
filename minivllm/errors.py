"""Errors a caller may see: what to change (`ClientError`) or what went wrong here (`ServerError`).

`entrypoints.http.errors` is the only place that turns them into a status and a body; `entrypoints.cli` prints them as
one line. Anything else that escapes is a defect of ours and becomes a 500 without details.
"""

from collections.abc import Sequence


class MinivllmError(Exception):
    """Base of every error that is meant to be read by a user."""

    status = 500
    type = "InternalServerError"

    def __init__(self, message: str, *, param: str | None = None, value: object = None):
        super().__init__(message)
        self.message = message
        self.param = param
        self.value = value


class ClientError(MinivllmError, ValueError):
    """The request cannot be served as it stands; `param` names the field to change."""

    status = 400
    type = "BadRequestError"


class NotFoundError(ClientError):
    status = 404
    type = "NotFoundError"


class AuthenticationError(ClientError):
    status = 401
    type = "AuthenticationError"


class PayloadTooLargeError(ClientError):
    status = 413
    type = "PayloadTooLargeError"


class ConfigError(ClientError):
    """A start-up option, model folder or environment that cannot work; the CLI prints it and exits with status 1."""

    type = "ConfigError"


class ServerError(MinivllmError):
    """The request was fine; the server failed."""


class OverloadedError(ServerError):
    """No room now; `retry_after` is the number of seconds after which a new try makes sense."""

    status = 503
    type = "ServiceUnavailableError"

    def __init__(self, message: str, *, retry_after: float = 1.0):
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(ServerError):
    """The time that the client gave its request (`timeout_ms`) ran out before the first token."""

    status = 504
    type = "TimeoutError"


class EngineDeadError(ServerError):
    """The engine core is gone; every open stream ends with this and the server process exits."""

    status = 503
    type = "ServiceUnavailableError"


def some_of(names: Sequence[str]) -> str:
    """The first five, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def one_line(error: Exception) -> str:
    """What to tell a user of any error: ours in full, of others the kind and the first line."""
    if isinstance(error, MinivllmError):
        return error.message
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
