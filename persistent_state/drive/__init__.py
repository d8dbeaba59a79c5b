"""The driver's turns, without Spark: what is read next, who makes what of it, and what is committed."""
