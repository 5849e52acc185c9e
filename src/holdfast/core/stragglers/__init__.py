"""Decide which rank of a gang is slow by itself, from the beats of all of them. Pure.

ring.py   a rank's beats → blocks of steps (in the agent)
gang.py   the blocks of all ranks → chunks that can be compared (in the controller)
judge.py  chunks → a verdict
"""
