"""Where a command's log goes: standard output is for what was asked for, so to standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def warnings_to_stderr() -> None:
    """Show warnings and worse; who has set up structlog already keeps what he has."""
    if structlog.is_configured():
        return
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # Looked up for every line: whoever redirects standard error later is heeded.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
    )
