"""Responses requests, checked and turned into a Turn."""

from pipeline.requests.responses.request import CompactRequest, ResponsesRequest

__all__ = ["CompactRequest", "ResponsesRequest"]
