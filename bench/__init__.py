"""Benchmarks: `make bench` runs them all, prints their table and writes the rows to bench/out/latest.json."""
