"""Hand the metrics of runs to OpenTelemetry's API where it is installed. What the user has set up there exports them.

The API is asked for a meter provider, and does nothing without one. An instrument can't be removed, nor be created twice, so
there is one set of instruments for each provider. They have the samples of the runs that last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from persistent_state.metrics import measures
from persistent_state.metrics.measures import BUCKETS, COUNTER, HISTOGRAM, Measure, Sample

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

METER = "persistent_state"
"""The name of the meter, by which a user finds the metrics, or leaves them out."""

UNITS = {measures.SECONDS: "s", measures.BYTES: "By"}
"""The units as OpenTelemetry names them."""

_logger = logging.getLogger("persistent_state")


class Telemetry:
    """A teller of one run, whom OpenTelemetry listens to until it is closed.

    `of_store` returns the samples of the run's store. It is called in the threads of their exporter.
    """

    def __init__(self, of_store: Callable[[], Iterable[Sample]], instruments: _Instruments) -> None:
        self._of_store, self._instruments = of_store, instruments
        # The newest value of a gauge counts, until the run ends.
        self._newest: dict[tuple[Measure, tuple[str, ...]], Sample] = {}
        self._has_failed = False
        _runs.append(self)

    def record(self, sample: Sample) -> None:
        """Record what happened in the run: how much a counter grows, how long something took, or what a gauge shows."""
        try:
            if not self._instruments.count(sample):
                self._newest[sample.of, sample.labels] = sample
        except Exception as error:
            # Any error of an SDK's: the run goes on.
            self._warn(error)

    def samples(self) -> list[Sample]:
        """Return what the run's store says, and the gauges of the run."""
        try:
            return [*self._of_store(), *self._newest.copy().values()]
        except Exception as error:
            # One run must not hide the others.
            self._warn(error)
            return []

    def close(self) -> None:
        """Hand over nothing more."""
        if self in _runs:
            _runs.remove(self)

    def _warn(self, error: Exception) -> None:
        if not self._has_failed:
            _logger.warning("OpenTelemetry was not told a metric; this is said once: %r", error)
        self._has_failed = True


def telemetry(of_store: Callable[[], Iterable[Sample]]) -> Telemetry | None:
    """Return what hands a run's metrics to OpenTelemetry; None if the package opentelemetry-api is not installed or fails."""
    try:
        from opentelemetry import metrics

        provider = metrics.get_meter_provider()
        if provider not in _of_providers:
            _of_providers[provider] = _Instruments(provider)
        return Telemetry(of_store, _of_providers[provider])
    except ImportError:
        return None
    except Exception as error:
        # No run fails for what watches it.
        _logger.warning("OpenTelemetry is not told the metrics of this run: %r", error)
        return None


class _Instruments:
    """The instruments of one provider. The counters and times of runs are counted as they happen; all else is asked for."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(METER)
        self._counted: dict[Measure, Callable[[float, Mapping[str, str]], None]] = {}
        for measure in measures.OF_RUN:
            about = (measure.name, UNITS.get(measure.unit, ""), measure.help)
            if measure.kind == COUNTER:
                self._counted[measure] = meter.create_counter(*about).add
            elif measure.kind == HISTOGRAM:
                made = meter.create_histogram(*about, explicit_bucket_boundaries_advisory=BUCKETS)
                self._counted[measure] = made.record
        every = (*measures.OF_STORE, *measures.OF_PROCESS, *measures.OF_RUN)
        on_demand = [measure for measure in every if measure not in self._counted]
        self._turn, self._waiting, self._round = threading.Lock(), {*on_demand}, list[tuple[Telemetry, list[Sample]]]()
        for measure in on_demand:
            make: Any = meter.create_observable_counter if measure.kind == COUNTER else meter.create_observable_gauge
            make(measure.name, [partial(self._observe, measure)], UNITS.get(measure.unit, ""), measure.help)

    def count(self, sample: Sample) -> bool:
        """Count a sample, unless it is of a metric that is asked for. Return whether it was counted."""
        count_sample = self._counted.get(sample.of)
        if count_sample is not None:
            count_sample(sample.value, sample.by_name)
        return count_sample is not None

    def _observe(self, measure: Measure, options: CallbackOptions) -> list[Observation]:
        from opentelemetry.metrics import Observation

        with self._turn:
            if measure in self._waiting:
                # One look at the stores for all instruments: the first that is asked again begins the next round.
                self._round = [(run, run.samples()) for run in [*_runs]]
                self._waiting.clear()
            self._waiting.add(measure)
            current = [sample for run, samples in self._round if run in _runs for sample in samples]
        return [Observation(sample.value, sample.by_name) for sample in current if sample.of == measure]


_runs: list[Telemetry] = []
_of_providers: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
