"""The benchmarks themselves, one module each: `name`, `budget`, `run(scale)`."""
