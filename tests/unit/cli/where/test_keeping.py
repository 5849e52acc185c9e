"""The file of contexts: private, whole, and changed by one at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from holdfast.cli.where.keeping import change_contexts
from holdfast.client.contexts.file import (
    CliContext,
    CliContexts,
    check_name,
    find_contexts_file,
    read_contexts,
    refuse_shared,
)
from holdfast.errors import Conflict, NotFound, ValidationError

PROD = CliContext(urls=("https://prod:1",), token="hft_secret")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def the_file(env: dict[str, str]) -> Path:
    path = find_contexts_file(env)
    assert path is not None
    return path


def test_what_was_put_is_read_and_only_its_owner_can_read_it(env: dict[str, str]) -> None:
    assert read_contexts(env) == CliContexts()
    change_contexts(env, lambda before: before.put("prod", PROD))
    assert read_contexts(env) == CliContexts(current="prod", contexts={"prod": PROD})
    assert the_file(env).stat().st_mode & 0o777 == 0o600
    assert the_file(env).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_tokens_that_others_may_read_are_not_used(env: dict[str, str], mode: int) -> None:
    change_contexts(env, lambda before: before.put("prod", PROD))
    the_file(env).chmod(mode)
    with pytest.raises(ValidationError, match=f"mode {mode:04o}.*chmod 600"):
        read_contexts(env)
    with pytest.raises(ValidationError, match="chmod 600"):
        change_contexts(env, lambda before: before.use("local"))


def test_a_refused_change_leaves_the_file_as_it_was(env: dict[str, str]) -> None:
    change_contexts(env, lambda before: before.put("prod", PROD))
    before = the_file(env).read_bytes()
    with pytest.raises(NotFound):
        change_contexts(env, lambda kept: kept.use("nowhere"))
    with pytest.raises(Conflict, match=r"prod is https://prod:1.*--context"):
        change_contexts(env, lambda kept: kept.put("prod", CliContext(urls=("https://else:2",))))
    assert the_file(env).read_bytes() == before
    assert list(the_file(env).parent.glob("*.part")) == []


def test_a_new_token_for_the_same_server_takes_the_old_ones_place(env: dict[str, str]) -> None:
    change_contexts(env, lambda before: before.put("prod", PROD))
    newer = CliContext(urls=("https://prod:1", "https://prod:2"), token="newer")
    assert change_contexts(env, lambda kept: kept.put("prod", newer)).get("prod") == newer


def test_forgetting_the_current_context_leaves_the_local_one(env: dict[str, str]) -> None:
    change_contexts(env, lambda before: before.put("lab", CliContext(urls=("https://lab:1",))))
    change_contexts(env, lambda before: before.put("prod", PROD))
    left = change_contexts(env, lambda kept: kept.without("prod"))
    assert (left.current, list(left.contexts)) == ("local", ["lab"])
    assert b"secret" not in the_file(env).read_bytes()


def test_changes_at_once_are_all_kept(env: dict[str, str]) -> None:
    def log_in(number: int) -> None:
        kept = CliContext(urls=(f"https://h{number}:1",))
        change_contexts(env, lambda before: before.put(f"h{number}", kept))

    threads = [threading.Thread(target=log_in, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_contexts(env).contexts) == 16


def test_a_linked_file_stays_a_link(env: dict[str, str], tmp_path: Path) -> None:
    """Some keep their configuration in another folder, and link to it."""
    the_file(env).parent.mkdir(parents=True)
    (tmp_path / "kept.json").write_text("{}")
    (tmp_path / "kept.json").chmod(0o600)
    the_file(env).symlink_to(tmp_path / "kept.json")
    change_contexts(env, lambda before: before.put("prod", PROD))
    assert the_file(env).is_symlink()
    assert b"prod" in (tmp_path / "kept.json").read_bytes()


def test_a_file_that_is_none_is_said(env: dict[str, str]) -> None:
    the_file(env).parent.mkdir(parents=True)
    the_file(env).write_text("{not json")
    the_file(env).chmod(0o600)
    with pytest.raises(ValidationError, match="log in again"):
        read_contexts(env)


def test_without_a_home_there_are_none_and_none_are_kept() -> None:
    assert read_contexts({}) == CliContexts()
    with pytest.raises(ValidationError, match="XDG_CONFIG_HOME"):
        change_contexts({}, lambda before: before.put("prod", PROD))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_file_of_another_user_is_not_used(env: dict[str, str]) -> None:
    change_contexts(env, lambda before: before.put("prod", PROD))
    path = the_file(env)
    os.chown(path, 12345, 12345)
    status = path.stat()
    refuse_shared(path, status)  # root reads what is any user's
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(12346)
            refuse_shared(path, status)
        except ValidationError as error:
            os._exit(7 if "belongs to uid 12345" in error.message else 8)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", ".x", "local", "ä", "x" * 65])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        check_name(name)
