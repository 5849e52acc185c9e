"""What the doctor says of facts: how grave they are, and that each fault has its mend."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.doctor import facts, host
from holdfast.core.doctor.controller import judge_controller
from holdfast.core.doctor.findings import DoctorFinding, Level, find_gravest
from holdfast.core.doctor.left_memory import LeftMemory
from holdfast.core.doctor.machine import JUDGES, judge_machine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 1 << 30
DISK = facts.DiskFacts(
    path="/d", use="data", free_bytes=100 * GIB, total_bytes=200 * GIB, free_inodes=900,
    total_inodes=1000, sync_seconds=0.002,
)  # fmt: skip
FILE = facts.FileFacts(path="/d/token", use="token", mode=0o600, uid=7, own_uid=7)
SERVER = facts.ControllerFacts(
    url="https://s", source="--url", user="alice", role="submit", token_id="t", version="1",
    client_version="1", clock_seconds=0.1,
)  # fmt: skip
SHM = facts.SharedMemoryFacts(free_bytes=7 * GIB, total_bytes=8 * GIB)
AGENT = facts.AgentFacts(folder="/a", running=True, registered=True, url="http://c")


def level(found: Iterable[DoctorFinding]) -> str:
    return find_gravest(list(found)).value


def change(known: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(known, **changes)


@pytest.mark.parametrize(
    ("judge", "known", "changes", "expected"),
    [
        (host.judge_disk, DISK, {}, "ok"),
        (host.judge_disk, DISK, {"free_bytes": 100 << 20}, "problem"),
        (host.judge_disk, DISK, {"free_bytes": 3 * GIB}, "warning"),
        (host.judge_disk, DISK, {"free_bytes": 3 * GIB, "total_bytes": 4 * GIB}, "ok"),
        (host.judge_disk, DISK, {"free_inodes": 40_000, "total_inodes": 10**6}, "warning"),
        (host.judge_disk, DISK, {"free_inodes": 3, "total_inodes": 10**6}, "problem"),
        (host.judge_disk, DISK, {"free_inodes": 0, "total_inodes": 0}, "ok"),  # btrfs counts none
        (host.judge_disk, DISK, {"sync_seconds": 0.2}, "warning"),
        (host.judge_disk, DISK, {"error": "Read-only file system"}, "problem"),
        (host.judge_file, FILE, {}, "ok"),
        (host.judge_file, FILE, {"mode": 0o640}, "problem"),
        (host.judge_file, FILE, {"uid": 8}, "problem"),
        (host.judge_file, FILE, {"uid": 8, "own_uid": 0}, "ok"),  # root uses a user's folder
        (host.judge_file, FILE, {"error": "Permission denied"}, "problem"),
        (host.judge_agent, AGENT, {}, "ok"),
        (host.judge_agent, AGENT, {"running": False}, "warning"),
        (host.judge_agent, AGENT, {"registered": False}, "warning"),
        (host.judge_agent, AGENT, {"url_error": "refused"}, "problem"),
    ],
)
def test_levels(judge: Any, known: Any, changes: dict[str, Any], expected: str) -> None:
    assert level(judge(change(known, **changes))) == expected


@pytest.mark.parametrize(
    ("judge", "known", "expected"),
    [
        (host.judge_groups, facts.GroupFacts(layout="v2", usable=True, memory=True), "ok"),
        (host.judge_groups, facts.GroupFacts(layout="v2", usable=True, memory=False), "warning"),
        (host.judge_groups, facts.GroupFacts(layout="none", usable=False, memory=False), "warning"),
        (host.judge_gpus, facts.GpuFacts(errors={"nvidia": "no library"}), "ok"),
        (host.judge_gpus, facts.GpuFacts(devices=8, drivers=["550.54"]), "ok"),
        (
            host.judge_gpus,
            facts.GpuFacts(nodes=["/dev/nvidia0"], errors={"nvidia": "Driver/library mismatch"}),
            "problem",
        ),
        (host.judge_containers, facts.ContainerFacts(), "warning"),
        (host.judge_containers, facts.ContainerFacts(program="/p", version="4"), "ok"),
        (host.judge_containers, facts.ContainerFacts(program="/p", error="no"), "problem"),
        (host.judge_limits, facts.LimitFacts(open_files_soft=1024, open_files_hard=-1), "warning"),
        (host.judge_limits, facts.LimitFacts(open_files_soft=-1, open_files_hard=-1), "ok"),
        (host.judge_shared_memory, facts.SharedMemoryFacts(total_bytes=64 << 20), "warning"),
        (host.judge_shared_memory, facts.SharedMemoryFacts(total_bytes=8 * GIB), "ok"),
        (host.judge_shared_memory, facts.SharedMemoryFacts(error="none"), "problem"),
        (
            host.judge_shared_memory,
            change(SHM, left=(LeftMemory(path="/s", bytes=GIB),)),
            "warning",
        ),
        (host.judge_shared_memory, change(SHM, left=(LeftMemory(path="/s", bytes=32),)), "ok"),
        (host.judge_shared_memory, change(SHM, left_error="too many processes"), "warning"),
        (host.judge_zone, facts.ZoneFacts(zone="Mars/Base", known=False), "warning"),
        (host.judge_zone, facts.ZoneFacts(database=False), "warning"),
        (host.judge_clock, facts.ClockFacts(synchronized=False), "warning"),
        (host.judge_clock, facts.ClockFacts(), "ok"),
        (host.judge_local, facts.LocalFacts(folder="/d/x", url="http://u", listening=True), "ok"),
        (host.judge_local, facts.LocalFacts(folder="/d/x", url="http://u"), "problem"),
        (host.judge_local, facts.LocalFacts(port=7878, port_taken=True), "warning"),
        (host.judge_import, facts.ImportFacts(python="/p"), "ok"),
        (host.judge_import, facts.ImportFacts(python="/p", file="/s/holdfast.py"), "problem"),
        (host.judge_import, facts.ImportFacts(python="/p", file="/h/__init__.py", own=True), "ok"),
        (
            host.judge_system,
            facts.SystemFacts(holdfast="1", python="3.9.1", kernel="6", machine="x"),
            "problem",
        ),
    ],
)
def test_levels_of_a_machine(judge: Any, known: Any, expected: str) -> None:
    assert level(judge(known)) == expected


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({}, "ok", "answers"),
        ({"plain": True, "url": "http://s"}, "warning", "plain http"),
        ({"clock_seconds": 30.0}, "warning", "ahead of"),
        ({"clock_seconds": -30.0}, "warning", "behind"),
        ({"clock_seconds": 30.0, "clock_error_seconds": 26.0}, "ok", "ahead of"),
        ({"version": "2"}, "warning", "the controller is 2"),
        ({"version": ""}, "warning", "does not say"),
        ({"role": "read"}, "warning", "submits nothing"),
        ({"expires_at": NOW + timedelta(hours=5)}, "warning", "expires in 5 h"),
        ({"expires_at": NOW + timedelta(days=30)}, "ok", "acts for alice"),
        ({"dead_urls": {"https://b": "refused"}}, "warning", "https://b does not answer"),
        ({"error": "no such token", "error_kind": "refused"}, "problem", "no such token"),
        ({"error": "CERTIFICATE_VERIFY_FAILED", "error_kind": "unreachable"}, "problem", "CERT"),
        ({"error": "None found. Start one.", "error_kind": "no_address"}, "problem", "None found"),
    ],
)
def test_levels_of_a_server(changes: dict[str, Any], expected: str, words: str) -> None:
    found = list(judge_controller(change(SERVER, **changes), NOW))
    assert level(found) == expected
    assert any(words in one.sentence for one in found)


def test_a_certificate_that_is_not_trusted_has_its_own_mend() -> None:
    error = "certificate verify failed: self-signed"
    found = judge_controller(change(SERVER, error=error, error_kind="unreachable"), NOW)
    assert "--ca-file" in next(iter(found)).mend


def test_a_host_needs_no_server_for_its_user() -> None:
    nowhere = change(SERVER, error="None found. Start one.", error_kind="no_address")
    assert level(judge_controller(nowhere, NOW, needed=False)) == "warning"


@given(st.data())
def test_each_fault_has_a_mend_and_no_fault_has_none(data: st.DataObject) -> None:
    """Whatever the facts are, the judges say something of each, and how to mend what is wrong."""
    kinds = [kind for kind, _ in JUDGES.values()]
    kind, judge = data.draw(st.sampled_from(list(JUDGES.values())))
    assert kind in kinds
    plain = data.draw(_make(kind))
    for one in judge(plain):
        assert one.part
        assert one.sentence
        assert bool(one.mend) == (one.level is not Level.OK), one


def _make(kind: Any) -> st.SearchStrategy[Any]:
    if kind == list[facts.DatabaseFinding]:
        one = st.builds(
            facts.DatabaseFinding,
            level=st.just("warning"),
            sentence=st.just("s"),
            mend=st.just("m"),
        )
        return st.lists(one, max_size=2)
    if getattr(kind, "__origin__", None) is list:
        return st.lists(st.builds(kind.__args__[0]), max_size=3)
    return st.builds(kind)


def test_a_part_that_did_not_end_is_a_problem_and_a_part_that_failed_a_warning() -> None:
    found = judge_machine(
        ["disk /mnt/dead", "gpu", "limits", "shm"],
        [
            {"part": "limits", "error": "ValueError: x"},
            {"part": "shm", "found": {"total_bytes": 8 * GIB}},
        ],
        25.0,
    )
    said = {one.part: (one.level.value, one.sentence) for one in found}
    assert said["disk"] == ("problem", "looking at disk /mnt/dead did not end within 25 s")
    assert said["gpu"][0] == "problem"
    assert said["limits"][0] == "warning"
    assert said["shm"][0] == "ok"


def test_left_memory_is_named_with_its_bytes_and_its_removal() -> None:
    left = (
        LeftMemory(segment=7, bytes=512 << 20),
        LeftMemory(path="/dev/shm/torch 1", bytes=GIB),
        *(LeftMemory(path=f"/dev/shm/{i}", bytes=4096) for i in range(4)),
    )
    (finding,) = (one for one in host.judge_shared_memory(change(SHM, left=left)) if one.mend)
    assert "uses 1.5 GiB of shared memory: /dev/shm/torch 1 (1 GiB)," in finding.sentence
    assert "SysV segment 7 (512 MiB), /dev/shm/0 (4 KiB)" in finding.sentence
    assert finding.sentence.endswith("/dev/shm/1 (4 KiB), and 2 more")
    assert "rm -r -- '/dev/shm/torch 1' /dev/shm/0 /dev/shm/1; ipcrm -m 7" in finding.mend
