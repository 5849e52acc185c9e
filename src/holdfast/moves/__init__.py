"""Moves: functions that apply a report, a request or a decision to rows. Pure, shared by both
stores."""
