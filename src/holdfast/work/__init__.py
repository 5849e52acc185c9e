"""What runs inside a user's job: `beat`, `section` and `track`. Standard library only, and cheap to import.

All of it does nothing outside Holdfast, and nothing in it ever raises into the user's script or makes it
wait: a job must run the same with and without Holdfast, and must not fall over it.
"""

from holdfast.work.beats import Section, beat, section, track

__all__ = ["Section", "beat", "section", "track"]
