"""Tasks in containers, run by podman or docker.

runtimes.py    the two programs: what they are called with, and which of them is here
box.py         from a launch order to the container: mounts, environment, devices, limits
plan.py        what the agent gives the runner, and what the runner says back
images.py      one pull per image and host, the progress of it, and a registry's words
inside.py      the processes in there, as the host sees them: who is told to stop, and when
runner.py      the process that the guardian holds: pull, create, start, pass TERM on, remove
desk.py        the agent's side: prepares, follows, confirms ends, sweeps what was left

BOX-1  The guardian's task is the runner, a sub-reaper like the guardian: podman's monitor and the
       container below it stay its descendants, so the guardian's KILL, its lease deadline and its
       sweep reach the container as they reach any task. What is not below it (docker's engine
       starts containers itself) carries the host's mark and is found by it.
BOX-2  A container's name and labels come from the host's mark and the task's key alone. Whoever
       comes later, after any death, finds what is left by them, and removes it before the host
       takes work again.
BOX-3  A container task has ended when its container is gone, not when a client of the runtime
       returned (GANG-3).
BOX-4  Values of variables are on no command line: they go through the environment of the client
       that makes the container, or a private file, and neither is kept.
"""
