"""Settings, and the parts that are built from them."""

from pipeline.config.recipes import (
    backend_options,
    chat_options,
    recipe,
    recorder,
    responses_api,
    responses_options,
)
from pipeline.config.settings import Settings, choices

__all__ = [
    "Settings",
    "backend_options",
    "chat_options",
    "choices",
    "recipe",
    "recorder",
    "responses_api",
    "responses_options",
]
