"""The data source `persistent-state`: Spark reads what a store holds."""
