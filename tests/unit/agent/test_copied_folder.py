"""A host in a copied state folder takes nothing of the original for its own."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.agent.config import HOST_FILE, AgentConfig, read_mark
from holdfast.agent.guardian.guardian_folder import GROUP_RECORD, SOCKET_RECORD
from holdfast.agent.uplink.identity import HostIdentity, Registrar


def _register(folder: Path) -> Registrar:
    config = AgentConfig(url="http://127.0.0.1:1", state_dir=str(folder))
    calls: Any = SimpleNamespace(token="")
    return Registrar(calls, config, "next", read_mark(folder))


def _make_joined_folder(folder: Path) -> HostIdentity:
    folder.mkdir()
    known = HostIdentity(
        url="http://127.0.0.1:1", host_id="h1", host_key="key", mark=read_mark(folder)
    )
    (folder / HOST_FILE).write_bytes(msgspec.json.encode(known))
    for record in (SOCKET_RECORD, GROUP_RECORD):
        (folder / record).write_text("/somewhere/of/the/original")
    return known


def test_a_copy_has_a_mark_of_its_own_and_no_place_of_the_original(tmp_path: Path) -> None:
    """Two hosts of one mark would sweep each other's tasks, control groups and sockets."""
    _make_joined_folder(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    mark = read_mark(tmp_path / "two")
    assert mark != read_mark(tmp_path / "one")
    assert read_mark(tmp_path / "two") == mark
    assert not [r for r in (SOCKET_RECORD, GROUP_RECORD) if (tmp_path / "two" / r).exists()]
    assert (tmp_path / "one" / GROUP_RECORD).exists()


def test_a_copy_joins_as_a_new_host(tmp_path: Path) -> None:
    """JOIN-3: with the key of the original it would take that host's place."""
    known = _make_joined_folder(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert _register(tmp_path / "one").identity == known
    assert _register(tmp_path / "two").identity.host_key == ""


def test_a_folder_that_was_moved_keeps_its_host(tmp_path: Path) -> None:
    known = _make_joined_folder(tmp_path / "one")
    moved = (tmp_path / "one").rename(tmp_path / "three")
    assert _register(moved).identity == known
