"""One micro-batch, as plain functions: rows to partial sums, blobs to runs, and the clock that follows."""
