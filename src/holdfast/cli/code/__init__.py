"""Code that goes with jobs: its flags, the questions before it is sent, and the command about
it."""
