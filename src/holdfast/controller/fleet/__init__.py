"""The fleet at work: cycles of pools, and the calls to their providers."""
