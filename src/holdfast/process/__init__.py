"""Spawn, watch and end whole process trees: the one mechanism under the guardian and the host manager.

It knows nothing of jobs, leases or wires; what a task is called is a mark that it is given. Linux only
(pidfds, kernel 5.4 or later). Import what you need from its modules: `spawn`, `watch`, `tree`, `groups`,
`sweep`, `punch`, `table`, `syscalls`.
"""

from holdfast.process.ending import Ending, Signaller
from holdfast.process.groups import GroupHome, TaskGroup, open_group_home
from holdfast.process.spawn import Child, SpawnRequest, read_start, spawn
from holdfast.process.sweep import sweep
from holdfast.process.tree import Forest, Mark, Tree
from holdfast.process.watch import Exit, Watcher

__all__ = [
    "Child",
    "Ending",
    "Exit",
    "Forest",
    "GroupHome",
    "Mark",
    "Signaller",
    "SpawnRequest",
    "TaskGroup",
    "Tree",
    "Watcher",
    "open_group_home",
    "read_start",
    "spawn",
    "sweep",
]
