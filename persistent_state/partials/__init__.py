"""Tables of partial sums: a row per key and interval, sorted by the hash of the key."""
