"""Prometheus metrics. The number of values of each label is bounded."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pipeline.errors import Failure
from pipeline.serve.access.admission import Admission
from pipeline.serve.observe.exchange import Exchange
from sources.problems import PREFIX as PROBLEM

TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
MOST_VALUES = 200
"""Reasons and methods come from code, so they are few; the bound guards against bugs."""
CONTRACT = "contract: "
"""The prefix of the guard's reasons."""


class Metrics:
    """The counters of one server."""

    def __init__(self, admission: Admission, backend: Callable[[], Tally[str]]) -> None:
        self._registry = CollectorRegistry()
        self._words: set[str] = set()
        counter = self._counter
        self.requests = counter(
            "requests", "Requests, by route, mode and status.", "route", "mode", "status"
        )
        self.ttft = Histogram(
            "proxy_ttft_seconds",
            "Time to the first byte of the response.",
            ("mode",),
            buckets=TIMES,
            registry=self._registry,
        )
        self.duration = Histogram(
            "proxy_duration_seconds",
            "Time to the last byte of the response.",
            ("mode",),
            buckets=TIMES,
            registry=self._registry,
        )
        self.streams = Gauge("proxy_streams_open", "Open streams.", registry=self._registry)
        self.events: Tally[tuple[str, str]] = Tally()
        self.dropped: Tally[tuple[str, str]] = Tally()
        self.cuts: Tally[tuple[str, str]] = Tally()
        self.calls = counter("tool_calls", "Tool calls forwarded, by origin.", "origin")
        self.violations = counter(
            "contract_violations", "Illegal events that were not forwarded.", "rule"
        )
        self.errors = counter("errors", "Failures, by code.", "code")
        self.left = counter("clients_left", "Clients that disconnected before the end.", "mode")
        queue = Gauge(
            "proxy_queue_depth", "Requests waiting in the queue.", registry=self._registry
        )
        queue.set_function(lambda: admission.waiting)
        running = Gauge("proxy_turns_running", "Running turns.", registry=self._registry)
        running.set_function(lambda: admission.running)
        self._registry.register(_Backend(backend))
        self._registry.register(_Stages(self))

    def _counter(self, name: str, help: str, *labels: str) -> Counter:  # noqa: A002
        return Counter(f"proxy_{name}", help, labels, registry=self._registry)

    def count(self, exchange: Exchange, duration: float) -> None:
        """Count a finished request."""
        mode = {None: "none", True: "stream", False: "json"}[exchange.stream]
        self.requests.labels(exchange.route, mode, str(exchange.status)).inc()
        if exchange.model:
            self.duration.labels(mode).observe(duration)
            if exchange.first_byte:
                self.ttft.labels(mode).observe(exchange.first_byte - exchange.started)
        if exchange.failure is not None:
            self._count_error(exchange.failure)
        if exchange.client_left:
            self.left.labels(mode).inc()
        self._count_answer(exchange)
        self._count_stages(exchange)

    def _count_answer(self, exchange: Exchange) -> None:
        if exchange.answer is None:
            return
        for call in exchange.answer.calls:
            self.calls.labels(call.origin).inc()
        if exchange.answer.hidden_failure is not None:
            self._count_error(exchange.answer.hidden_failure)

    def _count_error(self, failure: Failure) -> None:
        # Codes may come from the upstream.
        self.errors.labels(self._known(failure.code or "none")).inc()

    def _count_stages(self, exchange: Exchange) -> None:
        for stage in (stage for ledger in exchange.ledgers for stage in ledger):
            name, events = stage.name, self.events
            events[name, "in"] += stage.taken
            events[name, "out"] += stage.given
            events[name, "made"] += stage.made
            if not (stage.folded or stage.dropped or stage.marks or stage.notes):
                continue  # nearly always
            events[name, "folded"] += stage.folded.total()
            events[name, "dropped"] += stage.dropped.total()
            for reason, number in stage.dropped.items():
                self.dropped[name, self._known(reason)] += number
            for cause, number in stage.marks.items():
                self.cuts[name, self._known(cause)] += number
            for note, number in (*stage.dropped.items(), *stage.notes.items()):
                if note.startswith(CONTRACT):
                    self.violations.labels(self._known(note.removeprefix(CONTRACT))).inc(number)

    def _known(self, word: str) -> str:
        """The value for a label; after too many different ones, it is `other`."""
        if word not in self._words and len(self._words) >= MOST_VALUES:
            return "other"
        self._words.add(word)
        return word

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class _Stages(Collector):
    """Counters of the stages, as plain numbers: every request adds to forty of them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[CounterMetricFamily]:
        for name, help, label, tally in (  # noqa: A001
            ("events", "Events, by stage and outcome.", "fate", self._metrics.events),
            (
                "events_dropped",
                "Dropped events, by stage and reason.",
                "reason",
                self._metrics.dropped,
            ),
            ("cuts", "Turns cut by a stage, by cause.", "cause", self._metrics.cuts),
        ):
            family = CounterMetricFamily(f"proxy_{name}", help, labels=("stage", label))
            for labels, number in tally.items():
                family.add_metric(labels, number)
            yield family


class _Backend(Collector):
    """The backend's own counters, read on each scrape."""

    def __init__(self, read: Callable[[], Tally[str]]) -> None:
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily]:
        messages = CounterMetricFamily(
            "proxy_rpc_messages", "Messages to and from the backend.", labels=("way", "method")
        )
        errors = CounterMetricFamily(
            "proxy_rpc_errors", "Requests that the backend rejected.", labels=("method", "code")
        )
        problems = CounterMetricFamily(
            "proxy_backend_problems",
            "Messages of the backend that could not be used, by kind and by method or type.",
            labels=("kind", "name"),
        )
        others = CounterMetricFamily(
            "proxy_backend", "Backend lifecycle and protocol events, by kind.", labels=("what",)
        )
        counted = self._read().copy()
        # The number of problems is bounded by their counter, and rare ones matter most.
        for what in [what for what in counted if what.startswith(f"{PROBLEM} ")]:
            _, kind, name = what.split(" ", 2)
            problems.add_metric((kind, name), counted.pop(what))
        for what, number in counted.most_common(MOST_VALUES):
            match what.split(" "):
                case ["sent" | "got" as way, method]:
                    messages.add_metric((way, method), number)
                case ["error", method, code]:
                    errors.add_metric((method, code), number)
                case _:
                    others.add_metric((what,), number)
        yield from (messages, errors, problems, others)


class _Collected(Collector):
    """Metrics that other processes have collected."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def by_worker(expositions: Mapping[str, str]) -> bytes:
    """The metrics of several processes as one exposition, each sample with a worker label.

    They are not summed: Prometheus can only detect the reset of a restarted worker's own counter.
    """
    read: Any = text_string_to_metric_families  # partly untyped
    families: dict[str, Metric] = {}
    for worker, text in expositions.items():
        for family in read(text):
            own = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                labels = {**sample.labels, "worker": worker}
                families.setdefault(family.name, own).samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry()
    registry.register(_Collected(families.values()))
    return generate_latest(registry)


def backend_exposition(counters: Tally[str]) -> bytes:
    """The backend's counters alone, for a process that serves no requests."""
    registry = CollectorRegistry()
    registry.register(_Backend(lambda: counters))
    return generate_latest(registry)
