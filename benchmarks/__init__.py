"""Benchmarks: throughput, latency and memory, relative to peers measured in the same run."""
