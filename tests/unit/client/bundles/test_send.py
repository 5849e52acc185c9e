"""INDEX-1, SEND-1…2: what is read and sent of a folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.client.bundles import index
from holdfast.client.bundles import send as send_module
from holdfast.client.bundles.index import Index, sign
from holdfast.client.bundles.send import FolderSender, Sent
from holdfast.client.bundles.walk import walk
from holdfast.client.rest import RestCall
from holdfast.core.bundles.manifest import Entry, decode_manifest, list_digests
from holdfast.core.bundles.packs import read_pack
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.wire.data.bundles import BundleView, MissingAnswer, MissingRequest


class Store:
    """What a controller keeps for one project."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.bundles: dict[str, list[Entry]] = {}
        self.asked: list[str] = []
        self.place = SimpleNamespace(url="http://c")

    def call(self, call: RestCall[Any]) -> Any:
        self.asked.append(f"{call.method} {call.path.rpartition('/')[2][:8]}")
        if call.path.endswith("/missing"):
            asked = msgspec.json.decode(call.body or b"", type=MissingRequest).digests
            return MissingAnswer(missing=[d for d in asked if bytes.fromhex(d) not in self.held])
        if call.path.endswith("/packs"):
            body = call.body or b""
            for part in read_pack(body):
                self.held[part.sha256] = body[part.at : part.at + part.size]
            return None
        if call.method == "GET":
            if call.path.rpartition("/")[2] not in self.bundles:
                raise NotFound("no bundle")
            return BundleView(digest="", project="p", files=0, bytes=0)
        digest, entries = decode_manifest(call.body or b"")
        if list_digests(entries).keys() - self.held.keys():
            raise Conflict("bytes are missing", code="bundle_incomplete")
        self.bundles[digest] = entries
        return BundleView(digest=digest, project="p", files=0, bytes=0)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "SETTLE_NS", -(10**12))  # as if all had been still for long
    return Store()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "a").mkdir(parents=True)
    for n in range(30):
        (made / f"a/{n}.txt").write_text(f"file {n % 20}")
    (made / "run.sh").write_text("#!/bin/sh\n")
    os.chmod(made / "run.sh", 0o755)
    (made / "empty").touch()
    return made


def send(store: Store, folder: Path, **more: Any) -> Sent:
    return FolderSender(store, walk(str(folder)), "p", "http://c", **more).send()


def test_each_file_goes_once_and_the_bundle_has_them_all(store: Store, folder: Path) -> None:
    sent = send(store, folder)
    entries = {entry.path: entry for entry in store.bundles[sent.code.digest]}
    assert len(store.held) == 21
    assert entries[b"run.sh"].bits == 0o755
    assert store.held[entries[b"a/7.txt"].digests] == b"file 7"
    assert entries[b"empty"].digests == b""
    assert (sent.files, sent.read) == (32, sent.size)


def test_an_unchanged_folder_is_not_read_and_costs_one_call(store: Store, folder: Path) -> None:
    first = send(store, folder)
    store.asked.clear()
    again = send(store, folder)
    assert again.code == first.code
    assert (again.read, again.sent, store.asked) == (0, 0, [f"GET {first.code.digest[:8]}"])


def test_before_many_bytes_are_sent_the_largest_folders_are_named(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_module, "TELL_BYTES", 100)
    notes: list[str] = []
    for big in ("a", "b"):
        (folder / big).mkdir(exist_ok=True)
        (folder / big / "big").write_bytes(bytes(4096 if big == "a" else 8192))
    send(store, folder, note=notes.append)
    assert "the most in b/ 8 KiB, a/ 4.2 KiB, ./ 10 bytes" in notes[0]
    send(store, folder, note=notes.append)
    (folder / "a/3.txt").write_text("changed")
    send(store, folder, note=notes.append)
    assert len(notes) == 1, "what is there already is not sent, and a small change is none to tell"
    other = FolderSender(Store(), walk(str(folder)), "p", "http://other", note=notes.append)
    other.send()
    assert len(notes) == 2


def test_one_changed_file_goes_alone(store: Store, folder: Path) -> None:
    first = send(store, folder)
    (folder / "a/3.txt").write_text("changed")
    store.asked.clear()
    again = send(store, folder)
    assert again.code.digest != first.code.digest
    assert again.read == len("changed")
    assert store.asked == ["POST missing", "PUT packs", "POST bundles"]


def test_what_the_server_lost_is_sent_again(store: Store, folder: Path) -> None:
    first = send(store, folder)
    store.held.clear()
    store.bundles.clear()
    again = send(store, folder)
    assert again.code == first.code
    assert len(store.held) == 21


def test_another_server_gets_all_of_it(store: Store, folder: Path) -> None:
    first = send(store, folder)
    other = Store()
    assert FolderSender(other, walk(str(folder)), "p", "http://other").send().code == first.code
    assert len(other.held) == 21


def test_a_file_is_as_it_was_only_if_it_was_still_when_the_index_was_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x"
    path.write_text("x")
    status = path.stat()
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    for later_ns, known in ((1_999_999_999, None), (2_000_000_000, b"d"), (10**10, b"d")):
        written = Index(written_ns=changed + later_ns, files={b"x": (sign(status), b"d")})
        assert written.find(b"x", status) == known
    path.write_text("y")
    late = Index(written_ns=changed + 10**12, files={b"x": (sign(status), b"d")})
    assert late.find(b"x", path.stat()) is None


def test_a_file_that_changes_while_it_is_read_is_said_and_read_again(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.client.bundles import send as module

    whole, said = module._read_whole, list[str]()

    def disturbed(fd: int, size: int) -> bytes:
        data = whole(fd, size)
        if data == b"#!/bin/sh\n":
            (folder / "run.sh").write_text("#!/bin/bash\n")
        return data

    monkeypatch.setattr(module, "_read_whole", disturbed)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0)
    sent = send(store, folder, note=said.append)
    assert sent.changed == [b"run.sh"]
    assert said == ["run.sh changed while it was read; it is read again"]
    assert b"#!/bin/bash\n" in store.held.values()


def test_a_file_that_never_stands_still_is_named(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.client.bundles import send as module

    whole = module._read_whole

    def disturbed(fd: int, size: int) -> bytes:
        os.utime(folder / "run.sh")
        return whole(fd, size)

    monkeypatch.setattr(module, "_read_whole", disturbed)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0)
    with pytest.raises(ValidationError, match=r"run\.sh changed each of the 5 times"):
        send(store, folder)


def test_a_large_file_goes_in_pieces(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    with open(folder / "sparse", "wb") as file:
        file.truncate(40 << 20)
        file.seek(20 << 20)
        file.write(b"x")
    sent = send(store, folder)
    (entry,) = store.bundles[sent.code.digest]
    assert len(list(entry.list_pieces())) == 5
    assert len(store.held) == 2  # the empty piece, once, and that with the byte
    assert store.asked.count("POST missing") == 2
