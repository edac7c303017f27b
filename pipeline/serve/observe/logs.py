"""Structured logs: one line for each request, readable on a terminal and JSON elsewhere."""

from __future__ import annotations

import fcntl
import json
import logging
import sys
from time import monotonic, sleep
from typing import Any, Final, Literal, TextIO, TypeAlias, cast

import msgspec
import structlog
from attrs import frozen

from pipeline.options import server_flag as flag

LogFormat: TypeAlias = Literal["auto", "json", "pretty"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
PATIENCE: Final = 1.0
"""Seconds that a line waits for other processes; mixed lines are better than a stalled server."""
PAUSE: Final = 0.001
Logger = structlog.typing.FilteringBoundLogger


@frozen(slots=False)
class LogOptions:
    """What is logged, and in which format."""

    log_format: LogFormat = flag(
        "PROXY_LOG_FORMAT", "auto", "auto is pretty on a terminal and JSON elsewhere"
    )
    log_level: LogLevel = flag("PROXY_LOG_LEVEL", "info", "minimum log level")
    log_content: bool = flag(
        "PROXY_LOG_CONTENT", False, "include prompts, answers and arguments in the log"
    )


def configure(
    options: LogOptions, out: TextIO | None = None, *, worker: int = 0, shared: bool = False
) -> None:
    """Send every log line to standard error, pretty or as JSON.

    Each worker adds its number to its lines. `shared`: other processes write to the same output.
    """
    to: TextIO = sys.stderr if out is None else out
    pretty = options.log_format == "pretty" or (options.log_format == "auto" and to.isatty())
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=to.isatty(), pad_event_to=0)]
        if pretty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_as_json)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *([_with(worker=worker)] if worker else []),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[options.log_level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(_shared(to) if worker or shared else to),
        cache_logger_on_first_use=False,
    )
    for name in ("hypercorn.error", "pipeline.serve"):
        library = logging.getLogger(name)
        library.handlers = [_Forwarding()]
        library.propagate = False


class SharedLog:
    """Keeps lines whole while other processes write to the same output.

    The system keeps only short writes whole, and may put them inside long ones. So every line is
    written under a lock. The wait for it is short, and is skipped while the lock stays taken.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._patience = PATIENCE

    def write(self, line: str) -> None:
        locked = self._lock()
        try:
            self._out.write(line)
            self._out.flush()
        finally:
            if locked:
                fcntl.lockf(self._out, fcntl.LOCK_UN)

    def flush(self) -> None:
        """Nothing is buffered."""

    def _lock(self) -> bool:
        until = monotonic() + self._patience
        while True:
            try:
                fcntl.lockf(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic() >= until:
                    self._patience = 0.0
                    return False
                sleep(PAUSE)
            except OSError:
                return False  # not a file, or locks are not supported
            else:
                self._patience = PATIENCE
                return True


def _shared(out: TextIO) -> TextIO:
    return cast("TextIO", SharedLog(out))


def _as_json(line: object, **_: object) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=repr).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in some file names
        return json.dumps(line, default=repr)


def _with(**facts: object) -> structlog.typing.Processor:
    def add(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**event, **facts}

    return add


class _Forwarding(logging.Handler):
    """Forwards records of Python's own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        log: Logger = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
