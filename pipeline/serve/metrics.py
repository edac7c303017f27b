"""What is counted, in the format of Prometheus. No label has more values than we gave it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pipeline.errors import Failure
from pipeline.serve.admission import Admission
from pipeline.serve.exchange import Exchange
from sources.problems import PREFIX as PROBLEM

TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
MOST_VALUES = 200
"""Reasons and methods come from code, so they are few; a bug must not make them many."""
CONTRACT = "contract: "
"""How the guard's reasons begin."""


class Metrics:
    """The counters of one server."""

    def __init__(self, admission: Admission, backend: Callable[[], Tally[str]]) -> None:
        self._registry = CollectorRegistry()
        self._words: set[str] = set()
        counter = self._counter
        self.requests = counter("requests", "Requests answered.", "route", "mode", "status")
        self.ttft = Histogram(
            "proxy_ttft_seconds",
            "Time to the first byte of an answer.",
            ("mode",),
            buckets=TIMES,
            registry=self._registry,
        )
        self.duration = Histogram(
            "proxy_duration_seconds",
            "Time to the last byte of an answer.",
            ("mode",),
            buckets=TIMES,
            registry=self._registry,
        )
        self.streams = Gauge("proxy_streams_open", "Streams being sent.", registry=self._registry)
        self.events: Tally[tuple[str, str]] = Tally()
        self.dropped: Tally[tuple[str, str]] = Tally()
        self.cuts: Tally[tuple[str, str]] = Tally()
        self.calls = counter("tool_calls", "Tool calls forwarded, by how they came.", "origin")
        self.violations = counter("contract_violations", "Illegal events kept back.", "rule")
        self.errors = counter("errors", "Failures by code.", "code")
        self.left = counter("clients_left", "Clients that left before the end.", "mode")
        queue = Gauge("proxy_queue_depth", "Requests that wait.", registry=self._registry)
        queue.set_function(lambda: admission.waiting)
        running = Gauge("proxy_turns_running", "Turns that run.", registry=self._registry)
        running.set_function(lambda: admission.running)
        self._registry.register(_Backend(backend))
        self._registry.register(_Stages(self))

    def _counter(self, name: str, help: str, *labels: str) -> Counter:  # noqa: A002
        return Counter(f"proxy_{name}", help, labels, registry=self._registry)

    def count(self, exchange: Exchange, duration: float) -> None:
        """Enter a finished request."""
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
        # Codes may be the upstream's own.
        self.errors.labels(self._known(failure.code or "none")).inc()

    def _count_stages(self, exchange: Exchange) -> None:
        for stage in (stage for ledger in exchange.ledgers for stage in ledger):
            name, events = stage.name, self.events
            events[name, "in"] += stage.taken
            events[name, "out"] += stage.given
            events[name, "made"] += stage.made
            if not (stage.folded or stage.dropped or stage.marks or stage.notes):
                continue  # as nearly always
            events[name, "folded"] += stage.folded.total()
            events[name, "dropped"] += stage.dropped.total()
            for reason, number in stage.dropped.items():
                self.dropped[name, self._known(reason)] += number
            for cause, number in stage.marks.items():
                self.cuts[name, self._known(cause)] += number
            for told, number in (*stage.dropped.items(), *stage.notes.items()):
                if told.startswith(CONTRACT):
                    self.violations.labels(self._known(told.removeprefix(CONTRACT))).inc(number)

    def _known(self, word: str) -> str:
        """A label's value; stages that invent words without end share one."""
        if word not in self._words and len(self._words) >= MOST_VALUES:
            return "other"
        self._words.add(word)
        return word

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class _Stages(Collector):
    """What the stages did. Every request adds to forty of these, so they are plain numbers."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[CounterMetricFamily]:
        for name, help, label, tally in (  # noqa: A001
            ("events", "Events by stage and what became of them.", "fate", self._metrics.events),
            ("events_dropped", "Events dropped, and why.", "reason", self._metrics.dropped),
            ("cuts", "Generations ended by a stage, and why.", "cause", self._metrics.cuts),
        ):
            family = CounterMetricFamily(f"proxy_{name}", help, labels=("stage", label))
            for labels, number in tally.items():
                family.add_metric(labels, number)
            yield family


class _Backend(Collector):
    """The backend's own counters, read when somebody asks."""

    def __init__(self, read: Callable[[], Tally[str]]) -> None:
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily]:
        messages = CounterMetricFamily(
            "proxy_rpc_messages", "Messages to and from the backend.", labels=("way", "method")
        )
        errors = CounterMetricFamily(
            "proxy_rpc_errors", "Requests the backend refused.", labels=("method", "code")
        )
        problems = CounterMetricFamily(
            "proxy_backend_problems",
            "What the backend sent and could not be used, by kind and by method or type.",
            labels=("kind", "name"),
        )
        others = CounterMetricFamily("proxy_backend", "What befell the backend.", labels=("what",))
        counted = self._read().copy()
        # Problems are bounded where they are counted, and the rare ones matter most.
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


class _Told(Collector):
    """What others have collected."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def by_worker(expositions: Mapping[str, str]) -> bytes:
    """What several processes have counted as one exposition, each sample with a worker's name.

    Sums would hide that a worker began to count anew, which whoever scrapes us can tell by itself.
    """
    read: Any = text_string_to_metric_families  # its types are half unknown
    families: dict[str, Metric] = {}
    for worker, text in expositions.items():
        for family in read(text):
            own = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                labels = {**sample.labels, "worker": worker}
                families.setdefault(family.name, own).samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry()
    registry.register(_Told(families.values()))
    return generate_latest(registry)


def backend_exposition(counters: Tally[str]) -> bytes:
    """The backend's counters alone, where no requests are served."""
    registry = CollectorRegistry()
    registry.register(_Backend(lambda: counters))
    return generate_latest(registry)
