"""The job library: `beat`, `section`, `track`, `checkpoint`, `on_drain`, `stopping`. Standard library.

Outside Holdfast all of it does nothing. It never raises into the user's script, except for wrong
arguments, and never makes it wait for another machine, because a job must run the same with and
without Holdfast.
"""

from holdfast.work import checkpoint
from holdfast.work.beats import Section, beat, section, track
from holdfast.work.drain_hook import on_drain
from holdfast.work.stop_word import StopWord, stopping

__all__ = ["Section", "StopWord", "beat", "checkpoint", "on_drain", "section", "stopping", "track"]
