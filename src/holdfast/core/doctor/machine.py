"""Judge all that was found on a machine, part by part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.doctor import facts, host
from holdfast.core.doctor.findings import DoctorFinding, Level, warning


def _judge_files(found: Sequence[facts.FileFacts]) -> Iterator[DoctorFinding]:
    for one in found:
        yield from host.judge_file(one)


def _judge_imports(found: Sequence[facts.ImportFacts]) -> Iterator[DoctorFinding]:
    for one in found:
        yield from host.judge_import(one)


def _judge_database(found: Sequence[facts.DatabaseFinding]) -> Iterator[DoctorFinding]:
    for one in found:
        yield DoctorFinding("database", Level(one.level), one.sentence, one.mend)


_Judge = Callable[[Any], Iterator[DoctorFinding]]
# The first word of a part's name → the type of its facts, and the function that judges them.
JUDGES: Mapping[str, tuple[Any, _Judge]] = {
    "system": (facts.SystemFacts, host.judge_system),
    "imports": (list[facts.ImportFacts], _judge_imports),
    "clock": (facts.ClockFacts, host.judge_clock),
    "time-zone": (facts.ZoneFacts, host.judge_zone),
    "disk": (facts.DiskFacts, host.judge_disk),
    "permissions": (list[facts.FileFacts], _judge_files),
    "ports": (facts.LocalFacts, host.judge_local),
    "agent": (facts.AgentFacts, host.judge_agent),
    "limits": (facts.LimitFacts, host.judge_limits),
    "cgroups": (facts.GroupFacts, host.judge_groups),
    "gpu": (facts.GpuFacts, host.judge_gpus),
    "containers": (facts.ContainerFacts, host.judge_containers),
    "shm": (facts.SharedMemoryFacts, host.judge_shared_memory),
    "database": (list[facts.DatabaseFinding], _judge_database),
}


def judge_machine(
    asked: Sequence[str], fragments: Sequence[Mapping[str, Any]], seconds: float
) -> list[DoctorFinding]:
    """Return the findings of every part that was asked for, in the order of `JUDGES`.

    fragments: a line for each part that was done, with `found` or `error`. seconds: the time after
    which the others were given up.
    """
    order = list(JUDGES)
    found: list[DoctorFinding] = []
    done = {str(one["part"]): one for one in fragments}
    for part in sorted(asked, key=lambda name: order.index(name.split(" ")[0])):
        word = part.split(" ")[0]
        fragment = done.get(part)
        if fragment is None:
            found += host.judge_missed([part], seconds)
        elif "found" in fragment:
            kind, judge = JUDGES[word]
            found += judge(msgspec.convert(fragment["found"], kind))
        else:
            said = f"{part} could not be looked at: {fragment.get('error', '')}"
            found.append(warning(word, said, "Report this, with `holdfast doctor --bundle`"))
    return found
