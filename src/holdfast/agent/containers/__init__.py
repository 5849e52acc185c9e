"""Run tasks in containers, by podman or docker.

runtimes.py    the two programs: their argument lists, and which of them is on this host
box.py         from a launch order to the container: mounts, environment, devices, limits
plan.py        the plan that the agent gives the runner, and the status it gets back
images.py      locks of pulls, their progress, and errors of registries
pulls.py       one pull per image and host
inside.py      the processes inside, as the host sees them: which get TERM, and when
runner.py      the process that the guardian starts: pull, create, start, pass TERM on, remove
tasks.py       the agent's side: prepares, follows, confirms ends, sweeps the remains

BOX-1  The guardian's task is the runner, a sub-reaper like the guardian: podman's monitor and the
       container stay descendants of the runner, so that the guardian's KILL, its lease deadline and
       its sweep reach the container as they reach any task. Processes that are no descendants
       (docker's engine starts containers itself) carry the host's mark, by which they are found.
BOX-2  A container's name and labels come from the host's mark and the task's key alone. After any
       death the next agent finds leftover containers by them, and removes these before the host
       runs tasks again.
BOX-3  A container task has ended when its container is gone, and not already when the runtime's
       client returns (GANG-3).
BOX-4  Values of variables are on no command line: they go through the environment of the client
       that makes the container, or a private file, and neither is kept.
"""
