"""What goes of a folder: in a checkout what git names, elsewhere what no rule leaves out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.client.bundles.care import find_worries, is_secret, say_too_large
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


def test_there_has_to_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no such folder"):
        walk(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "path",
    [b".env", b"a/.env.prod", b"key.pem", b"id_rsa", b"x/id_ed25519", b".aws/credentials", b"h/.config/gcloud/a.db",
     b".kube/config", b".netrc"],
)  # fmt: skip
def test_it_asks_before_secrets_go(path: bytes, tmp_path: Path) -> None:
    assert is_secret(path)
    (worry,) = find_worries(os.fsencode(tmp_path), "/home/me", [b"a.py", path])
    assert path.decode() in worry


@pytest.mark.parametrize("path", [b"env.py", b"id_rsa.pub", b".env.example", b"id_map.py", b"a.py"])
def test_other_files_go_without_a_question(path: bytes) -> None:
    assert not is_secret(path)


def test_it_asks_before_the_home_folder_goes(tmp_path: Path) -> None:
    home = tmp_path / "me"
    home.mkdir()
    for folder in (home, tmp_path):
        assert "home folder" in find_worries(os.fsencode(folder), str(home), [])[0]
    assert find_worries(os.fsencode(home / "work"), str(home), []) == []


def test_a_folder_over_the_bound_is_named_with_its_largest_folders(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "b/yyyyyy", "c")
    found = walk(str(tmp_path))
    said = say_too_large(found.size, 5, found.list_largest())
    assert "12 bytes" in said
    assert said.index("b/ 8 bytes") < said.index("a/ 3 bytes") < said.index("--workdir-max")
