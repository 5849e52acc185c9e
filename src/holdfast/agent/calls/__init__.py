"""Run the executors of calls on one host: start them, exchange calls with them, watch each call.

line    an executor's connection to this agent, and the messages that it has to pass on
place   which call an executor runs now, read from the file that the executor writes
room    the GPU memory that an executor has for a model
"""
