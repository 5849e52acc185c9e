"""The job library: `beat`, `section`, `track`, `checkpoint` and `on_drain`. Standard library only.

Outside Holdfast all of it does nothing. It never raises into the user's script, except for wrong
arguments, and never makes it wait for another machine, because a job must run the same with and
without Holdfast.
"""

from holdfast.work import checkpoint
from holdfast.work.beats import Section, beat, section, track
from holdfast.work.drain_hook import on_drain

__all__ = ["Section", "beat", "checkpoint", "on_drain", "section", "track"]
