"""Sends a command's log to standard error, because standard output has its result."""

from __future__ import annotations

import logging
import sys

import structlog


def warnings_to_stderr() -> None:
    """Show warnings and errors, unless structlog is already configured."""
    if structlog.is_configured():
        return
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # Looked up for every line, because standard error may be redirected later.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
    )
