"""Chat Completions requests, checked and turned into a Turn."""

from pipeline.requests.chat.request import ChatRequest

__all__ = ["ChatRequest"]
