"""Logs as facts: one line a request, for people on a terminal and as JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

from pipeline.settings import Settings

Logger = structlog.typing.FilteringBoundLogger


def configure(settings: Settings, out: TextIO | None = None) -> None:
    """Send every log line to standard error, in the form that the operator or the place wants."""
    to: TextIO = sys.stderr if out is None else out
    pretty = settings.log_format == "pretty" or (settings.log_format == "auto" and to.isatty())
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=to.isatty(), pad_event_to=0)]
        if pretty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.log_level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(to),
        cache_logger_on_first_use=False,
    )
    for name in ("hypercorn.error", "pipeline.serve"):
        theirs = logging.getLogger(name)
        theirs.handlers = [_Passed()]
        theirs.propagate = False


class _Passed(logging.Handler):
    """Passes on what a library says through Python's own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        log: Logger = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
