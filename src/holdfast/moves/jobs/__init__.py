"""Moves of jobs: functions that apply requests, reports and decisions to jobs and their tasks.
Pure."""
