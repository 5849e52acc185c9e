"""What goes of a folder: in a checkout what git names, elsewhere what no rule leaves out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.client.bundles.care import find_home, find_secrets, is_secret, say_too_large
from holdfast.client.bundles.send import refuse_unreadable
from holdfast.client.bundles.walk import Walk, walk
from holdfast.errors import ValidationError


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(("git", *own, *words), cwd=folder, check=True, capture_output=True)


def goes(found: Walk) -> set[str]:
    return {os.fsdecode(one.path) for one in found.found}


def left(found: Walk) -> dict[str, str]:
    return {os.fsdecode(one.path): one.why for one in found.left_out}


def test_elsewhere_the_rules_of_gitignore_decide(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "data/x", "data/keep.txt", "sub/data/y", "sub/a.log", "sub/deep/b.log")
    write(tmp_path, ".hg/store", "model.pt", "sub/model.pt", "build/out.o")
    (tmp_path / ".gitignore").write_text("/data/*\n!/data/keep.txt\n*.log\nbuild/\n")
    (tmp_path / "sub/.gitignore").write_text("!a.log\nmodel.pt\n")
    (tmp_path / ".holdfastignore").write_text("/model.pt\n")
    found = walk(str(tmp_path))
    assert goes(found) == {
        ".gitignore", ".holdfastignore", "a.py", "data", "data/keep.txt", "sub", "sub/.gitignore", "sub/a.log", "sub/data",
        "sub/data/y", "sub/deep",
    }  # fmt: skip
    why = left(found)
    assert why["data/x"] == ".gitignore says /data/*"
    assert why["sub/model.pt"] == "sub/.gitignore says model.pt"
    assert why["model.pt"] == ".holdfastignore says /model.pt"
    assert why[".hg/"] == "it is a folder of version control"
    assert "build/out.o" not in why


def test_in_a_checkout_git_decides_and_holdfastignore_leaves_out_more(tmp_path: Path) -> None:
    inner = tmp_path / "lib"
    inner.mkdir()
    git(inner, "init", "-q")
    write(inner, "lib.py", "out.o")
    (inner / ".gitignore").write_text("*.o\n")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "1")
    top = tmp_path / "top"
    top.mkdir()
    git(top, "init", "-q", "-b", "trunk")
    write(top, "train.py", "tracked.log", "x.log", "new.py", "big/data.bin", "gone.py")
    (top / ".gitignore").write_text("*.log\n")
    git(top, "add", "-f", "train.py", "tracked.log", ".gitignore", "gone.py")
    git(top, "submodule", "add", "-q", str(inner), "lib")
    git(top, "commit", "-qm", "1")
    (top / "gone.py").unlink()
    (top / ".holdfastignore").write_text("big/\n")
    found = walk(str(top), explain=True)
    assert goes(found) == {
        ".gitignore", ".gitmodules", ".holdfastignore", "lib", "lib/.gitignore", "lib/lib.py", "new.py", "tracked.log", "train.py",
    }  # fmt: skip
    assert left(found)["x.log"] == ".gitignore says *.log"
    assert left(found)["big/data.bin"] == ".holdfastignore says big/"
    code = found.checkout
    assert code is not None
    assert (len(code.commit), code.branch, code.dirty) == (40, "trunk", True)
    below = walk(str(top / "lib"))
    assert below.checkout is not None
    assert not below.checkout.dirty


def test_what_is_no_file_is_left_out_with_the_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xff")).write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    found = walk(str(tmp_path))
    assert {one.path for one in found.found} == {b"n\xff", b"loop"}
    assert left(found) == {"pipe": "it is no file, link or folder"}


def test_rules_match_bytes_beside_names_that_are_no_utf8(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"caf\xe9.tmp", "größe.tmp".encode(), "größe.txt".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("x")
    (tmp_path / ".holdfastignore").write_bytes("*.tmp\ngröße.txt\n".encode())
    found = walk(str(tmp_path))
    assert {one.path for one in found.found} == {b".holdfastignore", b"caf\xe9.txt"}
    assert left(found)["größe.txt"] == ".holdfastignore says größe.txt"


@pytest.mark.parametrize("bad", ["!", "[z-a]", "a\\", "[[:foo:]]"])
@pytest.mark.parametrize("name", [".gitignore", ".holdfastignore"])
def test_a_bad_pattern_is_told_with_its_line(tmp_path: Path, name: str, bad: str) -> None:
    write(tmp_path, "a.py")
    (tmp_path / name).write_text(f"*.tmp\n{bad}\n*.log\n")
    with pytest.raises(ValidationError, match=rf"^{re.escape(name)}, line 2: .* is no pattern"):
        walk(str(tmp_path))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a file that git keeps to itself and a tracked one that a rule names."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    top = tmp_path / "top"
    top.mkdir()
    git(top, "init", "-q")
    write(top, "main.py", "keep.dat", "secret.bin")
    (top / ".git/info/exclude").write_text("secret.bin\n")
    (top / ".gitignore").write_text("*.dat\n")
    git(top, "add", "-f", "main.py", "keep.dat", ".gitignore")
    git(top, "commit", "-qm", "1")
    return top


def _spoil_index(top: Path) -> None:
    (top / ".git/index").write_bytes(b"nothing")


def _spoil_head(top: Path) -> None:
    (top / ".git/HEAD").unlink()


def _point_nowhere(top: Path) -> None:
    """As of a worktree whose repository was moved."""
    (top / ".git").rename(top.parent / "moved")
    (top / ".git").write_text(f"gitdir: {top}/gone\n")


@pytest.mark.parametrize("spoil", [_spoil_index, _spoil_head, _point_nowhere])
def test_a_checkout_that_git_refuses_is_refused_in_its_words(
    checkout: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(checkout)
    with pytest.raises(
        ValidationError, match=r"git refuses the checkout .* git says: .*(fatal|error)"
    ):
        walk(str(checkout))
    write(checkout, "below/x.py")
    with pytest.raises(ValidationError, match="git refuses"):
        walk(str(checkout / "below"))


def test_a_checkout_inside_of_another_is_refused_too(checkout: Path) -> None:
    inner = checkout / "lib"
    inner.mkdir()
    git(inner, "init", "-q")
    write(inner, "lib.py")
    _spoil_index(inner)
    with pytest.raises(ValidationError, match=f"refuses the checkout at {inner}"):
        walk(str(checkout))


def test_variables_of_git_lead_to_no_other_checkout(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = walk(str(checkout))
    assert goes(own) == {".gitignore", "keep.dat", "main.py"}
    monkeypatch.setenv("GIT_DIR", str(checkout.parent / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(checkout.parent / "index"))
    again = walk(str(checkout))
    assert (goes(again), again.checkout) == (goes(own), own.checkout)
    with pytest.raises(ValidationError, match="unset GIT_DIR"):
        walk(str(checkout.parent))


def test_without_git_a_checkout_goes_by_its_rules_and_that_is_said(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(checkout / "none"))
    found = walk(str(checkout))
    assert "keep.dat" not in goes(found)
    assert "there is no git here" in found.hints[0]


def test_a_folder_that_git_could_not_read_is_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git only warns of such a folder; here another git says what git says to a stranger."""
    real = shutil.which("git")
    fake = checkout.parent / "bin/git"
    fake.parent.mkdir()
    warning = "warning: could not open directory 'data/': Permission denied"
    fake.write_text(f'#!/bin/sh\necho "{warning}" >&2\nexec {real} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    found = walk(str(checkout))
    assert [(one.path, one.why) for one in found.unreadable] == [(b"data", "Permission denied")]
    with pytest.raises(
        ValidationError, match="data cannot be read: Permission denied; nothing was"
    ):
        refuse_unreadable(found)
    (checkout / ".holdfastignore").write_text("data/\n")
    refuse_unreadable(walk(str(checkout)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_what_cannot_be_read_is_named_outside_of_git(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "data/b")
    (tmp_path / "data").chmod(0)
    try:
        with pytest.raises(ValidationError, match="data cannot be read: Permission denied"):
            refuse_unreadable(walk(str(tmp_path)))
        (tmp_path / ".holdfastignore").write_text("data\n")
        refuse_unreadable(walk(str(tmp_path)))
    finally:
        (tmp_path / "data").chmod(0o700)


def test_an_ignore_file_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / ".holdfastignore").symlink_to(".holdfastignore")
    with pytest.raises(
        ValidationError, match=r"holdfastignore cannot be read: .* nothing was sent"
    ):
        walk(str(tmp_path))


def test_what_goes_otherwise_than_expected_is_hinted_at(checkout: Path) -> None:
    lib = checkout.parent / "lib"
    lib.mkdir()
    git(lib, "init", "-q")
    write(lib, "lib.py")
    git(lib, "add", ".")
    git(lib, "commit", "-qm", "1")
    git(checkout, "submodule", "add", "-q", str(lib), "lib")
    git(checkout, "submodule", "deinit", "-f", "lib")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 99\n"
    (checkout / "model.pt").write_text(pointer)
    (checkout / ".holdfastignore").write_text("*.log\n!keep.dat\n!/secret.bin\n")
    submodule, idle, lfs = walk(str(checkout)).hints
    assert "the submodule lib goes empty" in submodule
    assert idle.startswith(".holdfastignore says !/secret.bin, but git leaves that out")
    assert "1 files are pointers of Git LFS" in lfs


def test_all_that_does_not_go_of_a_checkout_has_a_reason(checkout: Path) -> None:
    os.mkfifo(checkout / "pipe")
    (checkout / "empty/deep").mkdir(parents=True)
    why = left(walk(str(checkout), explain=True))
    assert why == {
        "pipe": "it is no file, link or folder",
        "empty/deep/": "git names no empty folders",
        "secret.bin": ".git/info/exclude says secret.bin",
    }


def test_there_has_to_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no such folder"):
        walk(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "path",
    [b".env", b"a/.env.prod", b"key.pem", b"id_rsa", b"x/id_ed25519", b".aws/credentials", b"h/.config/gcloud/a.db",
     b".kube/config", b".netrc", b".git-credentials", b"tls/server.key", b".npmrc", b"token", b"hf_token", b"x.token"],
)  # fmt: skip
def test_it_asks_before_secrets_go(path: bytes) -> None:
    assert is_secret(path)
    (worry,) = find_secrets([b"a.py", path])
    assert path.decode() in worry


def test_all_files_that_may_hold_secrets_can_be_seen() -> None:
    paths = [b"%d.key" % number for number in range(9)]
    assert "8.key" in find_secrets(paths, whole=True)[0]
    assert "`holdfast code` names all" in find_secrets(paths)[0]
    assert find_secrets([b"a.py"]) == []


@pytest.mark.parametrize(
    "path",
    [
        b"env.py",
        b"id_rsa.pub",
        b".env.example",
        b"id_map.py",
        b"a.py",
        b"tokenizer.json",
        b"tokens.txt",
        b"keys.py",
    ],
)
def test_other_files_go_without_a_question(path: bytes) -> None:
    assert not is_secret(path)


def test_it_asks_before_the_home_folder_goes(tmp_path: Path) -> None:
    home = tmp_path / "me"
    home.mkdir()
    for folder in (home, tmp_path):
        assert "home folder" in find_home(str(folder), str(home))[0]
    assert "home folder" in find_home("/", str(home))[0]
    assert find_home(str(home / "work"), str(home)) == []


def test_a_folder_over_the_bound_is_named_with_its_largest_folders(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "b/yyyyyy", "c")
    found = walk(str(tmp_path))
    said = say_too_large(found.size, 5, found.list_largest())
    assert "12 bytes" in said
    assert said.index("b/ 8 bytes") < said.index("a/ 3 bytes") < said.index("--workdir-max")
