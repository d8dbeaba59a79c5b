"""Queries 5, 7, 11 and 12 of Nexmark, an auction's stream, as persistent tasks whose results DuckDB checks."""
