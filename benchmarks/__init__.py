"""Benchmarks: what this library costs beside what Spark's users would otherwise take."""
