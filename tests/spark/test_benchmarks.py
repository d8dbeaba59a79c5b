"""Each benchmark runs to its end, by its command; `test_kafka_benchmarks.py` has those that need a broker."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module

import pytest

import benchmarks
from tests.spark.conftest import Launch
from tests.spark.sessions import FOR_OTHERS, Jvm, patched
from tests.spark.smallest import HELPERS, IN_A_JVM, WITH_A_BROKER, WITH_OWN_JVMS, WITHOUT_SPARK, are_figures, figures_of


def test_each_benchmark_has_a_smallest_run() -> None:
    modules = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]
    names = {name.removeprefix("benchmarks.").removesuffix(".__main__") for name in modules}
    assert names == {*WITHOUT_SPARK, *IN_A_JVM, *WITH_OWN_JVMS, *WITH_A_BROKER, *HELPERS}
    assert not any(hasattr(import_module(f"benchmarks.{name}"), "main") for name in HELPERS)


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*WITHOUT_SPARK, *WITH_OWN_JVMS])
def test_a_benchmark_comes_to_figures(launch: Launch, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    # A short name: Spark puts UNIX sockets below the folder, and the system limits their paths.
    folder = tmp_path_factory.mktemp(name)
    arguments = {**WITHOUT_SPARK, **WITH_OWN_JVMS}[name]
    assert are_figures(figures_of(launch, folder, name, arguments, XDG_CACHE_HOME=str(folder)))


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", IN_A_JVM)
def test_a_benchmark_on_spark_comes_to_figures(
    launch: Launch, jvms: Sequence[Jvm], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = tmp_path_factory.mktemp(name)
    env = {**patched(folder, FOR_OTHERS), **jvms[0].env, "XDG_CACHE_HOME": str(folder)}
    assert are_figures(figures_of(launch, folder, name, IN_A_JVM[name], **env))
