"""Decide which rank of a gang is slow by itself, from the beats of all of them. Pure.

ring.py   a rank's beats → blocks: a few neighbouring steps of one rank, as medians (in the agent)
gang.py   the blocks of all ranks → chunks: steps that all ranks did (in the controller)
judge.py  chunks → a verdict
agree.py  checksums of all ranks at a step → which rank computes wrongly
"""
