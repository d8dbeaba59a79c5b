"""Write samples in the formats that Prometheus and others read, by the library prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persistent_state.errors import missing_package
from persistent_state.metrics import measures
from persistent_state.metrics.measures import BUCKETS, COUNTER, HISTOGRAM, Measure, Sample

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


def library() -> Any:
    """Return the module prometheus_client.

    Raises:
        InvalidInputError: The package is not installed.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise missing_package("prometheus_client", "metrics", "metrics") from error
    return prometheus_client


@dataclass(frozen=True)
class Samples:
    """A collector of the library, which asks a function for samples each time they are wanted."""

    samples: Callable[[], Iterable[Sample]]

    def collect(self) -> Iterator[Metric]:
        """Yield the samples as the library has them: those of a metric together."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        by_measure: dict[Measure, list[Sample]] = {}
        for sample in self.samples():
            by_measure.setdefault(sample.of, []).append(sample)
        for measure, some in by_measure.items():
            made = CounterMetricFamily if measure.kind == COUNTER else GaugeMetricFamily
            family = made(measure.name, measure.help, labels=measure.labels, unit=measure.unit)
            for sample in some:
                family.add_metric(sample.labels, sample.value)
            yield family


class Counts:
    """A collector of the library, which counts what happens in a run.

    Raises:
        InvalidInputError: The package prometheus-client is not installed.
    """

    def __init__(self) -> None:
        self._of = {measure: _instrument(measure) for measure in measures.OF_RUN}

    def record(self, sample: Sample) -> None:
        """Record how much a counter grows, how long something took, or what a gauge shows."""
        counted = self._of[sample.of].labels(*sample.labels)
        if sample.of.kind == COUNTER:
            counted.inc(sample.value)
        elif sample.of.kind == HISTOGRAM:
            counted.observe(sample.value)
        else:
            counted.set(sample.value)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as the library has them."""
        for instrument in self._of.values():
            for metric in instrument.collect():
                # When each series began is known by the one of the process.
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                yield metric


def _instrument(measure: Measure) -> Any:
    """Return what the library counts a metric with. It belongs to no registry."""
    made, more = library().Gauge, dict[str, Any]()
    if measure.kind == COUNTER:
        made = library().Counter
    elif measure.kind == HISTOGRAM:
        made, more = library().Histogram, {"buckets": BUCKETS}
    return made(measure.name, measure.help, measure.labels, unit=measure.unit, registry=None, **more)


def registry_of(samples: Callable[[], Iterable[Sample]]) -> CollectorRegistry:
    """Return a registry of the library with these samples.

    Raises:
        InvalidInputError: The package prometheus-client is not installed.
    """
    registry: CollectorRegistry = library().CollectorRegistry()
    registry.register(Samples(samples))
    return registry


def as_text(samples: Iterable[Sample]) -> str:
    """Return the samples as OpenMetrics text.

    Raises:
        InvalidInputError: The package prometheus-client is not installed.
    """
    registry = registry_of(lambda: samples)
    from prometheus_client.openmetrics.exposition import generate_latest

    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()
