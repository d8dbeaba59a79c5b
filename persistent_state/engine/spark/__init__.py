"""Spark itself: sessions, Spark Connect, the versions of PySpark, its errors, and Java."""
