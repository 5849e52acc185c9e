"""Logs and redaction: offsets stay true, secrets stay here, at every border between chunks."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.redact import Redactor
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink import logs
from holdfast.agent.uplink.logs import REST_SECONDS, STREAMS, LogShipper, StreamTail, read_log_tail
from holdfast.core.calls.marks import find_marks, make_mark
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskEvent
from holdfast.errors import Unavailable, ValidationError
from holdfast.process.syscalls import punch_hole
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.guardian import StreamEnd
from holdfast.wire.logs.uploads import LogsAnswer, LogUpload
from tests.waits import within

KEY = TaskKey("job", 0, 1)


def make_task(
    folder: Path,
    *,
    key: TaskKey = KEY,
    keep_mb: float = 16.0,
    secrets: dict[str, str] | None = None,
    executor: str = "",
) -> AgentTask:
    order = LaunchOrder(
        key=key,
        attempt=1,
        name="n",
        queue="q",
        project="p",
        argv=["x"],
        secrets=secrets or {},
        executor=executor,
        watch=WatchSettings(log_keep_mb=keep_mb),
    )
    return AgentTask(key, folder, order, 0.0)


def ship(tail: StreamTail, limit: int) -> bytes:
    """Read until there is nothing more; returns what was sent and checks the offsets."""
    sent = b""
    while (upload := tail.read_upload(limit)) is not None:
        assert upload.offset == tail.offset
        sent += upload.data
        tail.offset = upload.offset + len(upload.data)
        if upload.ended:
            break
        assert upload.data
    return sent


async def test_a_shipper_that_rests_sends_nothing_until_then(tmp_path: Path) -> None:
    """A gang that has fallen starts again meanwhile; its last lines come after that."""
    sent_at: list[float] = []
    loop = asyncio.get_running_loop()

    class Calls:
        async def send_logs(self, uploads: list[LogUpload]) -> LogsAnswer:
            sent_at.append(loop.time())
            return LogsAnswer()

    shipper = LogShipper(Calls(), lambda task: None)  # type: ignore[arg-type]  # what it uses of the calls
    running = asyncio.create_task(shipper.run())
    (tmp_path / "stdout").write_text("its last lines")
    task = make_task(tmp_path, key=KEY)
    task.move(AgentTaskEvent.GIVE_UP)
    await asyncio.sleep(0)
    shipper.rest()
    until = loop.time() + REST_SECONDS
    shipper.follow(task)
    shipper.hurry()
    async with within(30):
        while shipper.behind:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert min(sent_at) >= until - 0.01


async def test_the_logs_of_short_tasks_go_in_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first goes at once, and all that end soon after it wait for one another."""
    monkeypatch.setattr(logs, "_GATHER_SECONDS", 3600.0)
    sent: list[list[TaskKey]] = []

    class Calls:
        async def send_logs(self, uploads: list[LogUpload]) -> LogsAnswer:
            sent.append(list(dict.fromkeys(upload.key for upload in uploads)))
            return LogsAnswer()

    shipper = LogShipper(Calls(), lambda task: None)  # type: ignore[arg-type]  # what it uses of the calls
    running = asyncio.create_task(shipper.run())
    keys = [TaskKey(f"job{number}", 0, 1) for number in range(5)]
    async with within(30):
        for key in keys:
            folder = tmp_path / key.job_id
            folder.mkdir()
            (folder / "stdout").write_text("its only line")
            task = make_task(folder, key=key)
            task.move(AgentTaskEvent.GIVE_UP)
            shipper.follow(task)
            shipper.hurry()
            while not sent:
                await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sent == [keys[:1]]
    assert {upload.key for upload in shipper.read_uploads()} == set(keys[1:]), "in one call"


async def test_logs_go_as_soon_as_the_controller_answers_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of what has ended do not wait for as long as the waits of an outage have grown."""
    monkeypatch.setattr(random, "uniform", lambda *_: 1e6)  # no wait ends by itself
    task = make_task(tmp_path, key=KEY)
    (tmp_path / "stdout").write_text("its last lines")
    task.move(AgentTaskEvent.GIVE_UP)
    away, sent = [True], []

    class Calls:
        async def send_logs(self, uploads: list[LogUpload]) -> LogsAnswer:
            sent.append(len(uploads))
            if away[0]:
                raise Unavailable("away")
            return LogsAnswer()

    shipper = LogShipper(Calls(), lambda task: None)  # type: ignore[arg-type]  # what it uses of the calls
    shipper.follow(task)
    running = asyncio.create_task(shipper.run())
    async with within(30):
        while not sent:
            await asyncio.sleep(0.01)
        away[0] = False
        while shipper.behind:
            shipper.note_answer()
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(sent) >= 2


@given(
    st.lists(st.sampled_from(["abcd", "bcde", "dabc", "x", "ab", "cd", "\n"]), max_size=30),
    st.integers(1, 9),
    st.lists(st.integers(1, 12), max_size=8),
)
def test_no_secret_leaves_across_any_border(
    words: list[str], limit: int, writes: list[int]
) -> None:
    """REDACT-1: however the file grows and however it is cut, what is sent equals the whole file
    masked at once."""
    import tempfile

    data = "".join(words).encode()
    secrets = {"A": "abcd", "B": "bcde"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = make_task(folder, secrets=secrets)
        tail = StreamTail(task, "stdout")
        sent, at = b"", 0
        with open(folder / "stdout", "wb", buffering=0) as file:
            for size in writes:
                file.write(data[at : at + size])
                at += size
                sent += ship(tail, limit)
            file.write(data[at:])
        task.move(AgentTaskEvent.GIVE_UP)
        sent += ship(tail, limit)
    assert sent == Redactor(secrets.values()).mask(data)
    assert b"abcd" not in sent
    assert b"bcde" not in sent


def test_short_values_are_no_secrets() -> None:
    redactor = Redactor(["abc", "", "longer"])
    assert redactor.mask(b"abc longer abc") == b"abc ****** abc"
    assert redactor.mask_text("a longer story") == "a *** story"


def test_a_stream_that_outruns_the_wire_is_cut_in_the_middle(tmp_path: Path) -> None:
    task = make_task(tmp_path, keep_mb=1.0)
    (tmp_path / "stdout").write_bytes(b"a" * (10 << 20))
    tail = StreamTail(task, "stdout")
    first = tail.read_upload(256 << 10)
    assert first is not None
    assert first.offset == 0
    tail.offset = len(first.data)
    second = tail.read_upload(256 << 10)
    assert second is not None
    assert second.offset == (10 << 20) - (7 << 17), "seven eighths are kept of its end"


def test_no_byte_that_would_be_kept_is_skipped(tmp_path: Path) -> None:
    """LOGS-2: whatever a stream is behind."""
    task = make_task(tmp_path, keep_mb=1.0)
    (tmp_path / "stdout").write_bytes(b"a" * (1 << 20))
    tail = StreamTail(task, "stdout")
    tail.offset = 1 << 17
    upload = tail.read_upload(256 << 10)
    assert upload is not None
    assert upload.offset == 1 << 17


def test_holes_are_never_shipped_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"a" * (4 << 20))
    with open(path, "r+b") as file:
        punch_hole(file.fileno(), 1 << 20, 2 << 20)
    task = make_task(tmp_path)
    task.move(AgentTaskEvent.GIVE_UP)
    tail = StreamTail(task, "stdout")
    chunks = {}
    while (upload := tail.read_upload(300_000)) is not None:
        chunks[upload.offset] = upload.data
        tail.offset = upload.offset + len(upload.data)
        if upload.ended:
            break
    assert b"\0" not in b"".join(chunks.values())
    assert sum(map(len, chunks.values())) == 2 << 20
    assert 3 << 20 in chunks


def test_a_reader_is_given_what_the_disk_still_has(tmp_path: Path) -> None:
    word = "s3cr3t"
    text = (b"-" * 10 + word.encode()) * 1000
    (tmp_path / "stdout").write_bytes(text)
    tail = StreamTail(make_task(tmp_path, secrets={"KEY": word}), "stdout")
    read = b""
    while len(read) < len(text):
        at, data = tail.read_range(len(read), 7)
        assert (at, 0 < len(data) <= 7) == (len(read), True)
        read += data
    assert read == text.replace(word.encode(), b"*" * len(word))
    assert tail.read_range(len(text), 7) == (len(text), b"")
    (tmp_path / "stdout").write_bytes(b"a" * (4 << 20))
    with open(tmp_path / "stdout", "r+b") as file:
        punch_hole(file.fileno(), 1 << 20, 2 << 20)
    assert tail.read_range((1 << 20) - 2, 100) == ((1 << 20) - 2, b"aa")
    assert tail.read_range(1 << 20, 100) == (3 << 20, b""), "the hole's end, and nothing of it"
    at, data = tail.read_range(1 << 20, (2 << 20) + 5)
    assert (at, data) == (3 << 20, b"aaaaa")


def test_a_missing_file_ends_as_an_empty_stream(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    tail = StreamTail(task, "stderr")
    assert tail.read_upload(100) is None
    task.move(AgentTaskEvent.GIVE_UP)
    upload = tail.read_upload(100)
    assert upload is not None
    assert (upload.data, upload.ended) == (b"", True)


def test_bytes_that_are_in_no_file_are_counted_at_the_end(tmp_path: Path) -> None:
    """LOGS-2b: the file is shorter than what its task wrote, or gone."""
    task = make_task(tmp_path)
    task.path_of("stdout").write_bytes(b"first ")
    task.move(AgentTaskEvent.GIVE_UP)
    task.saved.output = {"stdout": StreamEnd(size=20, lost_bytes=14, reason="no space")}
    tail = StreamTail(task, "stdout")
    upload = tail.read_upload(100)
    assert upload is not None
    assert (upload.offset, upload.data, upload.ended) == (0, b"first ", False)
    tail.offset = 6
    upload = tail.read_upload(100)
    assert upload is not None
    assert (upload.offset, upload.data, upload.ended) == (20, b"", True)
    task.path_of("stdout").unlink()
    upload = tail.read_upload(100)
    assert upload is not None
    assert (upload.offset, upload.data, upload.ended) == (20, b"", True)


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("somebody else's")
    os.symlink(tmp_path / "target", tmp_path / "stdout")
    task = make_task(tmp_path)
    assert StreamTail(task, "stdout").read_upload(100) is None
    assert read_log_tail(task) == ""


def test_the_tail_is_redacted_and_short(tmp_path: Path) -> None:
    task = make_task(tmp_path, secrets={"K": "topsecret"})
    (tmp_path / "stderr").write_bytes(b"topsecret\n" * 5000 + b"\xff last words topsecret\n")
    (tmp_path / "stdout").write_text("hello\n")
    text = read_log_tail(task)
    assert "secret" not in text
    assert text.startswith("[stdout]\nhello\n[stderr]\n")
    assert text.endswith("last words *********")
    assert len(text) <= 16_384


def test_a_disk_that_takes_nothing_is_survived_and_mentioned_once(
    tmp_path: Path, caplog: object
) -> None:
    table = TaskTable(tmp_path)
    table.open()
    order = LaunchOrder(key=KEY, attempt=1, name="n", queue="q", project="p", argv=["x"])
    task = table.add(order, 0.0)
    (task.folder / "state.json").mkdir()  # nothing can be renamed onto it
    for now in (1.0, 2.0):
        table.save(task, now)
        assert task.dirty
    (task.folder / "state.json").rmdir()
    table.save(task, 3.0)
    assert not task.dirty
    again = TaskTable(tmp_path).restore(KEY, 4.0)
    assert again.order == order


def test_a_job_id_that_is_a_path_is_refused(tmp_path: Path) -> None:
    import pytest

    from holdfast.errors import ValidationError

    with pytest.raises(ValidationError):
        TaskTable(tmp_path).folder_of(TaskKey("../../etc", 0, 1))


class Refusing:
    """A controller that takes the logs of every task but one."""

    def __init__(self, refused: TaskKey) -> None:
        self.refused = refused
        self.taken: list[tuple[TaskKey, str, bytes]] = []

    async def send_logs(self, uploads: list[LogUpload]) -> LogsAnswer:
        """All of a call or nothing of it."""
        if any(upload.key == self.refused for upload in uploads):
            raise ValidationError("no such stream")
        self.taken += [(upload.key, upload.stream, upload.data) for upload in uploads]
        return LogsAnswer()


async def test_a_task_whose_logs_are_refused_costs_no_other_task_a_byte(tmp_path: Path) -> None:
    """Both its streams lie in one call: the second must not be looked for after the first was given
    up."""
    finished: list[TaskKey] = []
    calls = Refusing(TaskKey("bad", 0, 1))
    shipper = LogShipper(calls, lambda task: finished.append(task.key))  # type: ignore[arg-type]  # what it uses of the calls
    for job_id in ("bad", "good"):
        folder = tmp_path / job_id
        folder.mkdir()
        for stream in STREAMS:
            (folder / stream).write_text(f"{job_id} {stream}")
        task = make_task(folder, key=TaskKey(job_id, 0, 1))
        task.move(AgentTaskEvent.GIVE_UP)
        shipper.follow(task)
    running = asyncio.create_task(shipper.run())
    try:
        async with within(30):
            while shipper.behind and not running.done():
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        outcome = (await asyncio.gather(running, return_exceptions=True))[0]
    assert isinstance(outcome, asyncio.CancelledError)
    assert sorted(key.job_id for key in finished) == ["bad", "good"]
    good = TaskKey("good", 0, 1)
    assert sorted(calls.taken) == [
        (good, "stderr", b"good stderr"),
        (good, "stdout", b"good stdout"),
    ]


@given(
    st.lists(st.sampled_from(["abcd", "bcde", "dabc", "x", "ab", "cd", "*", "\n"]), max_size=30),
    st.lists(st.integers(1, 12), max_size=8),
)
def test_no_secret_stays_in_the_file(words: list[str], writes: list[int]) -> None:
    """LOGS-3: however the file grows, what is left of it on the disk is masked as a whole."""
    secrets = {"A": "abcd", "B": "bcdeab"}
    whole = "".join(words).encode()
    with tempfile.TemporaryDirectory() as folder:
        task = make_task(Path(folder), secrets=secrets)
        tail, written = StreamTail(task, "stdout"), 0
        with open(Path(folder, "stdout"), "ab", buffering=0) as file:
            for size in [*writes, len(whole)]:
                file.write(whole[written : written + size])
                written += size
                ship(tail, 5)
        task.move(AgentTaskEvent.GIVE_UP)
        sent = ship(tail, 5)
        assert Path(folder, "stdout").read_bytes() == Redactor(secrets.values()).mask(whole)
        assert b"abcd" not in sent


def test_what_is_not_sent_is_masked_too(tmp_path: Path) -> None:
    """LOGS-3, in the middle that LOGS-2 leaves out, and in a part larger than one turn."""
    filler = b"." * (20 << 20)
    (tmp_path / "stdout").write_bytes(filler + b"a-secret" + filler + b"a-secret" + b"." * 4096)
    task = make_task(tmp_path, keep_mb=0.1, secrets={"S": "a-secret"})
    task.move(AgentTaskEvent.GIVE_UP)
    tail = StreamTail(task, "stdout")
    for _ in range(9):
        upload = tail.read_upload(1 << 20)
        if upload is not None:
            tail.offset = upload.offset + len(upload.data)
            if upload.ended:
                break
    else:
        raise AssertionError("it never ends")
    kept = (tmp_path / "stdout").read_bytes()
    assert kept == filler + b"*" * 8 + filler + b"*" * 8 + b"." * 4096


def test_a_file_that_is_not_the_tasks_own_is_not_written(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"my a-secret")
    os.link(other, tmp_path / "stdout")
    task = make_task(tmp_path, secrets={"S": "a-secret"})
    task.move(AgentTaskEvent.GIVE_UP)
    assert ship(StreamTail(task, "stdout"), 100) == b"my ********"
    assert other.read_bytes() == b"my a-secret"


@given(
    st.lists(
        st.sampled_from(["a line\n", "half", "[holdfast] call ", "[hold", "[holdfast] call me\n"]),
        max_size=20,
    ),
    st.integers(200, 400),
)
def test_no_piece_of_an_executors_output_ends_within_a_mark(words: list[str], limit: int) -> None:
    text = ""
    for number, word in enumerate(words):
        gap = "" if text.endswith("\n") or not text else "\n"
        text += gap + make_mark("06ch2v8wq1m4kz7d9x3t", number, 1) + word
    data = text.encode()
    with tempfile.TemporaryDirectory() as folder:
        task = make_task(Path(folder), executor="family")
        task.path_of("stdout").write_bytes(data)
        tail, marks, sent = StreamTail(task, "stdout"), 0, b""
        while (upload := tail.read_upload(limit)) is not None:
            marks += len(find_marks(upload.data))
            sent += upload.data
            tail.offset = upload.offset + len(upload.data)
    assert data.startswith(sent)
    assert len(data) - len(sent) < 64
    assert marks == len(words)
