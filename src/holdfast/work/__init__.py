"""What runs inside a user's job: `beat`, `section`, `track`, `checkpoint` and `on_drain`. Standard
library only, cheap to import.

All of it does nothing outside Holdfast, and nothing in it ever raises into the user's script or
makes it
wait for another machine: a job must run the same with and without Holdfast, and must not fall over
it.
"""

from holdfast.work import checkpoint
from holdfast.work.beats import Section, beat, section, track
from holdfast.work.drain_hook import on_drain

__all__ = ["Section", "beat", "checkpoint", "on_drain", "section", "track"]
