"""Let Spark find the data source `persistent-state` by the name of this package, without registering.

Spark looks for packages whose names begin with `pyspark_`, and in each for a class of this name.
"""

from persistent_state.engine.store_source import StoreSource as DefaultSource

__all__ = ["DefaultSource"]
