"""Let Spark find the data source `persistent-state` by the name of this package, without registering.

Spark looks for packages whose names begin with `pyspark_`, and in each for a class of this name. It looks before the first
use of any Python data source, so this package imports nothing until its own is used.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source by name. Making one returns a `StoreSource`."""

    def __new__(cls, options: MutableMapping[str, str]) -> DataSource:  # type: ignore[misc]
        from persistent_state.engine.data_source.store_source import StoreSource

        return StoreSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark finds the source."""
        return "persistent-state"
