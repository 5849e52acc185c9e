"""Code that goes with jobs: its flags, what is asked before it goes, and the command about it."""
