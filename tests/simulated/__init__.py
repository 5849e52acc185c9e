"""What stands for machines in tests and benchmarks: many hosts in one process, and made-up readings."""
