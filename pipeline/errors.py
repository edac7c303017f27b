"""One family of errors: what went wrong, as an OpenAI client is told."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen
class Failure:
    """The facts of one error; the HTTP status and the JSON body follow from them alone."""

    message: str
    status: int = 500
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None

    def body(self) -> dict[str, Any]:
        """The JSON that every error path answers with."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "code": self.code,
                "param": self.param,
            }
        }


class ProxyError(Exception):
    """A failure on its way to the client as an exception: raised before the first byte is sent."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def refusal(param: str | None, problem: str, *, code: str = "invalid_request_error") -> ProxyError:
    """The error 400 for one wrong field of a request, or for its body as a whole.

    The message is the name of the field and then the problem.
    """
    return ProxyError(
        Failure(
            f"{param or 'the request body'} {problem}",
            status=400,
            type="invalid_request_error",
            code=code,
            param=param,
        )
    )


class UsageError(ValueError):
    """Something a person gave us, a flag or a file, cannot be used; the message says what can."""


def only_member(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception a group holds, or the group: callers catch what was raised, not a wrap.

    Of several that say the same, as workers do that start with the same wrong setting, it is one.
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
