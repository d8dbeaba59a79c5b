"""Each benchmark that needs a broker of Kafka runs to its end, by its command."""

from __future__ import annotations

import pytest

from examples.broker import broker_jars, connector_jars
from tests.spark.conftest import Launch
from tests.spark.smallest import WITH_A_BROKER, are_figures, figures_of
from tests.store.servers import needed

pytestmark = pytest.mark.kafka


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", WITH_A_BROKER)
def test_a_benchmark_with_a_broker_comes_to_figures(
    launch: Launch, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    with needed():
        broker_jars()
        connector_jars()
    assert are_figures(figures_of(launch, tmp_path_factory.mktemp(name), name, WITH_A_BROKER[name]))
