"""Holdfast's benchmarks: every figure stands beside a limit measured in the same run
(docs/reference/benchmarks.md)."""
