"""Commands about the code of jobs, and the sending of a folder."""
"""Code that goes with jobs: its flags, what is asked before it goes, and the command about it."""
