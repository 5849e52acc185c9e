"""The operations on what users run: jobs, arrays, calls, workflows, and what belongs to them."""
