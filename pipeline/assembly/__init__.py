"""Everything put together: settings, the server's own pipeline, and the server.

This imports all parts; the command line and examples import it, and no part does.
"""

from pipeline.assembly.serving import serve
from pipeline.config import (
    Settings,
    backend_options,
    chat_options,
    choices,
    recipe,
    recorder,
    responses_api,
    responses_options,
)
from pipeline.serve.running import serving

__all__ = [
    "Settings",
    "backend_options",
    "chat_options",
    "choices",
    "recipe",
    "recorder",
    "responses_api",
    "responses_options",
    "serve",
    "serving",
]
