"""When a queued job is expected to start, and what would let it start now.

line       the queued jobs in the order in which the planner considers them
scenario   one guess at how long everything takes, which a replay plays to its end
spread     equally likely times for how long something may take
pace       the starts of jobs in a stretch of time
"""
