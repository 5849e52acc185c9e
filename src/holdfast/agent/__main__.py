"""`python -m holdfast.agent CONFIG`: the agent, as its guardian starts it."""

import os
import sys

from holdfast.agent.agent import main

status = main(sys.argv[1:])
sys.stderr.flush()
os._exit(status)  # threads that hang in the kernel are not waited for
