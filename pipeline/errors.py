"""One family of errors, with the status and JSON body that an OpenAI client gets."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen
class Failure:
    """One error: everything that its HTTP status and JSON body are made of."""

    message: str
    status: int = 500
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body of an error response."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "code": self.code,
                "param": self.param,
            }
        }


class ProxyError(Exception):
    """A failure raised as an exception, before the first byte of the response is sent."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def rejection(
    message: str,
    *,
    status: int = 400,
    code: str = "invalid_request_error",
    param: str | None = None,
) -> ProxyError:
    """The error for a request that cannot be served as it was sent."""
    return ProxyError(
        Failure(message, status=status, type="invalid_request_error", code=code, param=param)
    )


def refusal(param: str | None, problem: str, *, code: str = "invalid_request_error") -> ProxyError:
    """The error 400 for one wrong field of a request, or for its body as a whole.

    The message is the name of the field and then the problem.
    """
    return rejection(f"{param or 'the request body'} {problem}", code=code, param=param)


class UsageError(ValueError):
    """A flag, setting or file cannot be used; the message says what can."""


def only_member(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception that a group holds, or else the group itself.

    Several with the same type and message count as one: workers that start with the same wrong
    setting all raise the same error.
    """
    first, *others = _members(group)
    alike = all(type(one) is type(first) and str(one) == str(first) for one in others)
    return first if alike else group


def _members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for member in group.exceptions:
        match member:
            case BaseExceptionGroup() as inner:
                found += _members(inner)
            case _:
                found.append(member)
    return found
