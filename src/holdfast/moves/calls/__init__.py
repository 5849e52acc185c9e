"""Moves of calls: functions that apply requests and reports to calls of Python functions. Pure."""
