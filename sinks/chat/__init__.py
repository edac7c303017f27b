"""Chat Completions: an answer as server-sent events, or as one JSON body."""

from sinks.chat.answer import ChatAnswer, ChatOptions
from sinks.chat.json import ChatCompletion, ChatJson
from sinks.chat.sse import ChatSse

__all__ = ["ChatAnswer", "ChatCompletion", "ChatJson", "ChatOptions", "ChatSse"]
