"""Hand a reader to Spark as bytes, so that a Python process which only passes it on need not import what it is made of.

Spark makes a data source in one process, plans it in another and asks it for offsets in a third, before any worker reads.
"""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType


def packed_source(name: str, what: str, reader: DataSourceStreamReader, schema: StructType | str) -> type[DataSource]:
    """Return a data source whose stream is read by a copy of the reader. If that can't be loaded, an error names it as `what`.

    Its classes are made here, so they are pickled by value. They name nothing that a process must import from this library.
    """
    source_name, source_schema = name, schema
    data: bytes = CloudPickleSerializer().dumps(reader)  # type: ignore[no-untyped-call]
    # Spark asks of which of its own classes a reader is.
    marks = [kind for kind in type(reader).__mro__ if kind.__module__.startswith("pyspark.")]

    class PackedReader(*marks):  # type: ignore[misc]
        _reader: Any = None

        def initialOffset(self) -> Any:
            return self._unpacked().initialOffset()

        def latestOffset(self, *given: Any) -> Any:
            return self._unpacked().latestOffset(*given)

        def getDefaultReadLimit(self) -> Any:
            return self._unpacked().getDefaultReadLimit()

        def prepareForTriggerAvailableNow(self) -> None:
            self._unpacked().prepareForTriggerAvailableNow()

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
            return self._unpacked().partitions(start, end)

        def read(self, partition: InputPartition) -> Any:
            return self._unpacked().read(partition)

        def _unpacked(self) -> Any:
            if self._reader is None:
                try:
                    self._reader = pickle.loads(data)
                except Exception as error:
                    from persistent_state.errors import InvalidInputError, StateError

                    if isinstance(error, StateError):
                        raise
                    why = f"{type(error).__name__}: {error}. Install what it imports where Spark runs Python, or let "
                    why += "PYTHONPATH name the folder."
                    if "CONTEXT_ONLY_VALID_ON_DRIVER" in str(error):
                        why = "its module makes a SparkSession when it is imported: put that under "
                        why += "`if __name__ == '__main__':`."
                    raise InvalidInputError(f"{what} can't be loaded by Spark's Python: {why}") from error
            return self._reader

    class PackedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def schema(self) -> StructType | str:
            return source_schema

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return PackedReader()

    return PackedSource
