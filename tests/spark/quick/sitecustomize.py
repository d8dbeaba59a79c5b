"""Lets each Python that Spark starts import PySpark from where it is installed: to compile it from its archive takes longer."""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
