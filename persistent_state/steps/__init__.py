"""What one Spark task does, as plain functions without Spark: lift and combine, then merge a shard."""
