"""Live metrics: counters, gauges and histograms that are cheap to move and write themselves as Prometheus text.

prometheus_client does the same at 14 MiB of memory and 0.1 s of start-up.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minivllm.metrics.definitions import PREFIX, Definition


@dataclass(slots=True)
class Metric:
    """A metric at one moment, as `LLM.get_metrics()` returns it."""

    name: str
    labels: dict[str, str]


@dataclass(slots=True)
class Counter(Metric):
    value: float


@dataclass(slots=True)
class Gauge(Metric):
    value: float


@dataclass(slots=True)
class Histogram(Metric):
    count: int
    sum: float
    buckets: dict[str, int]  # upper bound → number of values up to it; the last is "+Inf"


class ValueFamily:
    """A counter or gauge, with one value for each value of its own label (or one under "")."""

    def __init__(self, definition: Definition, labels: Mapping[str, str]):
        self.definition = definition
        self.labels = dict(labels)
        self.values: dict[str, float] = {} if definition.label else {"": 0}
        self._name = PREFIX + definition.name + ("_total" if definition.kind == "counter" else "")

    def add(self, amount: float, label: str = "") -> None:
        self.values[label] = self.values.get(label, 0) + amount

    def set(self, value: float) -> None:
        self.values[""] = value

    def head(self) -> list[str]:
        return _head(self._name, self.definition)

    def samples(self) -> list[str]:
        return [f"{self._name}{_label_text(self._labels_of(key))} {_number(value)}" for key, value in self.values.items()]

    def snapshot(self) -> list[Metric]:
        kind = Counter if self.definition.kind == "counter" else Gauge
        return [kind(PREFIX + self.definition.name, self._labels_of(key), value) for key, value in self.values.items()]

    def _labels_of(self, key: str) -> dict[str, str]:
        return self.labels | {self.definition.label: key} if self.definition.label else self.labels


class HistogramFamily:
    def __init__(self, definition: Definition, labels: Mapping[str, str]):
        self.definition = definition
        self.labels = dict(labels)
        self.sum = 0.0
        self._bounds = definition.buckets
        self._counts = [0] * (len(self._bounds) + 1)  # values in each bucket alone; the last one has no upper bound

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        for value in values:
            self.observe(value)

    def buckets(self) -> dict[str, int]:
        found, total = {}, 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            found["+Inf" if bound is None else _number(bound)] = total
        return found

    def head(self) -> list[str]:
        return _head(PREFIX + self.definition.name, self.definition)

    def samples(self) -> list[str]:
        name = PREFIX + self.definition.name
        buckets = self.buckets()
        lines = [f"{name}_bucket{_label_text(self.labels | {'le': bound})} {count}" for bound, count in buckets.items()]
        labels = _label_text(self.labels)
        return [*lines, f"{name}_sum{labels} {_number(self.sum)}", f"{name}_count{labels} {buckets['+Inf']}"]

    def snapshot(self) -> list[Metric]:
        buckets = self.buckets()
        return [Histogram(PREFIX + self.definition.name, self.labels, buckets["+Inf"], self.sum, buckets)]


def _head(name: str, definition: Definition) -> list[str]:
    return [f"# HELP {name} {definition.help}", f"# TYPE {name} {definition.kind}"]


def _number(value: float) -> str:
    return repr(float(value))


def _label_text(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
