"""The Responses API: an answer as server-sent events, as messages of a socket, or as one body."""

from sinks.responses.answer import ResponsesAnswer
from sinks.responses.json import ResponsesBody, ResponsesJson
from sinks.responses.options import ResponsesOptions, numbered_ids, unique_id
from sinks.responses.response import error_object, response_object
from sinks.responses.stream import ResponsesMessages, ResponsesSse

__all__ = [
    "ResponsesAnswer",
    "ResponsesBody",
    "ResponsesJson",
    "ResponsesMessages",
    "ResponsesOptions",
    "ResponsesSse",
    "error_object",
    "numbered_ids",
    "response_object",
    "unique_id",
]
