"""Loops of what is built on jobs: executors, calls, workflows."""
