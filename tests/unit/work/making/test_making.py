"""SETUP-1, INPUT-1…2, BUILD-1…2, RELINK-1, KEPT-2: an environment is made of what its key says, and
is its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.work.making.build import SetupFailed
from holdfast.work.making.links import find_copied
from holdfast.work.making.program import Setup, limit

_PTH = (
    """printf '%s\\n' "$PWD/src" > "$(echo "$VIRTUAL_ENV"/lib/python3*/site-packages)/dev.pth" """
)
_ASK = "import mine; print(mine.V)"


class Host:
    """A host with the environments of one project, and the log of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        (folder / "bin").mkdir()
        uv = folder / "bin/uv"  # makes an environment without pip, which takes a tenth of the time
        uv.write_text(
            f'#!/bin/sh\nfor last; do :; done\nexec {sys.executable} -I -m venv --without-pip "$last"\n'
        )
        uv.chmod(0o755)
        self.environ = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "HOME": str(folder),
            "HOLDFAST_WORK": "",
        }

    def run(
        self,
        line: str,
        files: Mapping[str, str],
        env: Mapping[str, str] | None = None,
        *,
        named: tuple[str, ...] = (),
    ) -> tuple[Path, dict[str, str]]:
        """Prepare a job's environment; return the job's folder and the variables of its program."""
        self.number += 1
        home = self.folder / f"job{self.number}"
        home.mkdir(exist_ok=True)
        for name, text in files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        code = self.folder / "code"
        code.write_bytes(b"\0".join(os.fsencode(name) for name in files))
        plan = {"root": str(self.folder / "root"), "setup": line, "code": str(code),
                "given": list(env or ()), "files": list(named)}  # fmt: skip
        environ = {**self.environ, "HOLDFAST_WORK": str(home), **(env or {})}
        return home, Setup(plan, home, environ).prepare()

    def ask(self, job: tuple[Path, dict[str, str]], code: str) -> str:
        """Return what a line of Python prints in a job."""
        home, env = job
        words = ["python", "-c", code]
        done = subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def find(job: tuple[Path, dict[str, str]]) -> str:
    """Return which environment a job got."""
    return job[1]["PATH"].split("/venv/bin")[0].rpartition("/")[2]


def test_an_editable_install_runs_the_code_of_the_job_and_is_made_once(host: Host) -> None:
    jobs = [host.run(_PTH, {"src/mine.py": f"V = {v}\n", "train.py": f"{v}"}) for v in (1, 2)]
    assert find(jobs[0]) == find(jobs[1])
    assert [host.ask(job, _ASK) for job in jobs] == ["1", "2"]


def test_a_finder_of_an_editable_install_is_relinked_as_a_path_is(host: Host) -> None:
    """As setuptools writes one, for packages beside other files."""
    finder = (
        "from __future__ import annotations\n"
        "import sys\nMAPPING: dict[str, str] = {'mine': '%s/mine'}\n"
        "class F:\n"
        " def find_spec(self, name, path=None, target=None):\n"
        "  from importlib.util import spec_from_file_location as s\n"
        "  return s(name, MAPPING[name] + '/__init__.py') if name in MAPPING else None\n"
        "def install(): sys.meta_path.append(F())\n"
    )
    write = (
        "python -c 'import os, site; p = site.getsitepackages()[0]; "
        'open(p + "/__editable___f.py", "w").write(open("finder").read() % os.getcwd()); '
        'open(p + "/f.pth", "w").write("import __editable___f; __editable___f.install()")\''
    )
    jobs = [host.run(write, {"mine/__init__.py": f"V = {v}\n", "finder": finder}) for v in (1, 2)]
    assert find(jobs[0]) == find(jobs[1])
    assert [host.ask(job, _ASK) for job in jobs] == ["1", "2"]


def test_files_that_the_line_read_count_and_others_do_not(host: Host) -> None:
    line = "f=a; cat lib/$f.py > $VIRTUAL_ENV/a"  # which names no file
    files = {"requirements.txt": "x", "train.py": "1", "lib/a.py": "1", "lib/b.py": "1"}
    first = find(host.run(line, files))
    assert find(host.run(line, {**files, "train.py": "2", "lib/b.py": "2", "new.py": ""})) == first
    for other in ({"lib/a.py": "2"}, {"requirements.txt": "y"}):
        assert find(host.run(line, {**files, **other})) != first
    assert find(host.run(line, files)) == first


@pytest.mark.parametrize("how", ["ln -s $PWD/lib/mine", "ln $PWD/lib/mine/__init__.py"])
def test_code_that_is_linked_into_an_environment_counts_and_stays(host: Host, how: str) -> None:
    line = f"d=$(echo $VIRTUAL_ENV/lib/python3*/site-packages); mkdir $d/lib; {how} $d/lib/"
    files = {"lib/mine/__init__.py": "V = 1\n", "train.py": "1"}
    at = "lib.mine" if "-s" in how else "lib"
    first = host.run(line, files)
    assert find(host.run(line, {**files, "train.py": "2"})) == find(first)
    second = host.run(line, {**files, "lib/mine/__init__.py": "V = 2\n"})
    said = [
        host.ask(
            job,
            f"import os; os.chdir('/'); import sys; sys.path.remove(''); import {at} as m; print(m.V)",
        )
        for job in (first, second)
    ]
    assert said == ["1", "2"]


def test_a_clone_of_a_file_is_found_though_no_read_shows(tmp_path: Path) -> None:
    """As `cp` makes one on a disk with reflinks."""
    (tmp_path / "env").mkdir()
    for name, text in (("a", "one"), ("b", "two"), ("env/copy", "two"), ("empty", "")):
        (tmp_path / name).write_text(text)
    files = {name: tmp_path / name for name in ("a", "b", "empty")}
    assert find_copied([tmp_path / "env"], files) == {"b"}


def test_files_that_are_named_in_turn_count_where_no_read_shows_them(host: Host) -> None:
    outside = host.folder / "outside.txt"
    line = f"true -r deps/all.in {outside}"
    files = {"deps/all.in": "-r more.in\n", "deps/more.in": "-c ../pins.cfg\n", "pins.cfg": "1"}
    outside.write_text("1")
    first = find(host.run(line, files))
    assert find(host.run(line, {**files, "pins.cfg": "2"})) != first
    outside.write_text("2")
    assert find(host.run(line, files)) != first


def test_a_script_that_the_line_names_is_given_the_variables_that_it_names(host: Host) -> None:
    files = {"tools/make.py": "import os; print(os.environ['OWN'])", "tools/a.txt": ""}
    line = "cd tools && python make.py > $VIRTUAL_ENV/own && cat a.txt"
    found = [find(host.run(line, files, {"OWN": v})) for v in "121"]
    assert found[0] == found[2] != found[1]
    assert (host.folder / "root" / found[1] / "venv/own").read_text() == "2\n"


def test_a_link_counts_by_what_it_leads_to(host: Host) -> None:
    (host.folder / "pins").write_text("1")
    found = list[str]()
    for text in "12":
        (host.folder / "pins").write_text(text)
        (host.folder / f"job{host.number + 1}").mkdir()
        (host.folder / f"job{host.number + 1}/requirements.txt").symlink_to(host.folder / "pins")
        found.append(find(host.run("true", {})))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    "path", [".config/pip/pip.conf", ".config/uv/uv.toml", ".netrc", "own.conf"]
)
def test_configurations_of_installers_count(host: Host, path: str) -> None:
    env = {"PIP_CONFIG_FILE": str(host.folder / "own.conf")}
    found = list[str]()
    for text in (None, "1", "2"):
        if text is not None:
            (host.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (host.folder / path).write_text(text)
        found.append(find(host.run("true", {}, env)))
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("line", "name"),
    [("true", "PIP_INDEX_URL"), ("true", "UV_EXTRA_INDEX_URL"), ("echo $OWN", "OWN"), ("true", "CFLAGS"),
     ("true", "IN_FILE")],
)  # fmt: skip
def test_variables_that_say_what_to_make_count_and_their_values_stand_nowhere(
    host: Host, line: str, name: str
) -> None:
    files = {"requirements.txt": "--index-url https://u:${IN_FILE}@example.org\n"}
    found = [find(host.run(line, files, {name: f"secret-{v}"})) for v in (1, 2, 1)]
    assert found[0] != found[1]
    assert found[0] == found[2]
    told = [p.read_bytes() for p in host.folder.glob("root/*/ready.json")]
    assert not any(b"secret-" in text for text in told)


def test_a_variable_that_says_nothing_is_not_given_and_makes_nothing_anew(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another PYTHONPATH of the shell that started the host is none of its own either."""
    line = "env > $VIRTUAL_ENV/given"
    jobs = [host.run(line, {}, {"SEED": v, "HOLDFAST_RANK": v}) for v in "12"]
    assert find(jobs[0]) == find(jobs[1])
    given = (host.folder / "root" / find(jobs[0]) / "venv/given").read_text()
    assert "SEED" not in given
    assert "HOLDFAST_RANK" not in given
    assert "not given HOLDFAST_RANK, SEED" in capsys.readouterr().out
    host.environ["PYTHONPATH"] = "/elsewhere"
    job = host.run(line, {})
    assert find(job) == find(jobs[0])
    assert "PYTHONPATH" not in job[1]
    assert host.run(line, {}, {"PYTHONPATH": "mine"})[1]["PYTHONPATH"] == "mine"


def test_no_file_of_the_project_runs_in_the_making(host: Host) -> None:
    (host.folder / "bin/uv").unlink()
    host.environ["PYTHONPATH"] = str(host.folder)
    for name in ("logging.py", "json.py", "venv.py"):
        (host.folder / name).write_text("raise SystemExit('mine')")
    files = dict.fromkeys(("logging.py", "json.py", "ensurepip.py"), "raise SystemExit('mine')")
    assert host.ask(host.run("true", files), "print(1)") == "1"


def test_what_the_line_leaves_in_the_folder_is_there_for_the_next_job(host: Host) -> None:
    """`python -m venv .venv`, `uv sync`, and a compiled file beside the code."""
    line = (
        "python -m venv --without-pip .venv && mkdir -p pkg/new && echo built > pkg/new/lib.so && "
        "echo V = 1 > .venv/lib/python3*/site-packages/mine.py && echo y >> config"
    )
    line = line.replace("> .venv/lib/python3*/", "> $(echo .venv/lib/python3*)/")
    for _ in range(2):
        job = host.run(line, {"config": "x\n", "pkg/a.py": ""})
        assert host.ask(job, _ASK) == "1"
        assert host.ask(job, "import sys; print(sys.prefix)") == str(job[0] / ".venv")
        assert (job[0] / ".venv/bin/python").exists()
        assert (job[0] / "pkg/new/lib.so").read_text() == "built\n"
        assert (job[0] / "config").read_text() == "x\ny\n"
        (job[0] / "pkg/new/lib.so").write_text("its own")
    assert host.number == 2
    assert len(list(host.folder.glob("root/*/ready.json"))) == 1


def test_what_root_wrote_into_an_environment_reaches_no_other_job(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    first = host.run("true", {})
    packages = next(
        (host.folder / "root" / find(first) / "venv").glob("lib/python3*/site-packages")
    )
    packages.chmod(0o755)
    (packages / "sneaked.py").write_text("")
    packages.chmod(0o555)
    second = host.run("true", {})
    assert find(second) != find(first)
    assert "was changed after it was made, so it is made anew" in capsys.readouterr().out
    with pytest.raises(subprocess.CalledProcessError):
        host.ask(second, "import sneaked")
    assert find(host.run("true", {})) == find(second)


def test_bits_and_writes_do_not_leave_an_environment(host: Host) -> None:
    """An installer's cache is linked hard, and softly, into the packages."""
    cache = host.folder / "cache"
    (cache / "soft").mkdir(parents=True)
    for path in (cache / "hard.py", cache / "soft/__init__.py"):
        path.write_text("V = 1\n")
        path.chmod(0o644)
    line = f"cd $VIRTUAL_ENV/lib/python3*/site-packages && ln {cache}/hard.py . && ln -s {cache}/soft ."
    job = host.run(line, {})
    for path in (cache / "hard.py", cache / "soft/__init__.py"):
        assert path.stat().st_mode & 0o777 == 0o644
        assert path.stat().st_nlink == 1
        path.write_text("V = 2\n")
    assert host.ask(job, "import hard, soft; print(hard.V, soft.V)") == "1 1"


def test_a_local_install_is_made_anew_by_an_edit_or_a_new_file_beside_what_it_read(
    host: Host,
) -> None:
    line = (
        "d=$(echo $VIRTUAL_ENV/lib/python3*/site-packages) && mkdir $d/m.dist-info && cp -r lib/mine $d && "
        """printf '{"url": "file://%s/lib", "dir_info": {}}' $PWD > $d/m.dist-info/direct_url.json"""
    )
    files = {"lib/mine/__init__.py": "V = 1\n", "train.py": "1"}
    first = host.run(line, files)
    assert find(host.run(line, {**files, "train.py": "2", "other.py": ""})) == find(first)
    edited = host.run(line, {**files, "lib/mine/__init__.py": "V = 2\n"})
    assert host.ask(edited, _ASK) == "2"
    assert find(host.run(line, {**files, "lib/mine/new.py": ""})) not in (find(first), find(edited))


def test_a_making_that_fails_or_takes_too_long_leaves_nothing(host: Host) -> None:
    with pytest.raises(SetupFailed, match="exit code 7"):
        host.run("exit 7", {})
    with pytest.raises(SetupFailed, match=r"not ready within 0\.2 s"), limit(0.2):
        host.run("sleep 60", {})
    assert list(host.folder.glob("root/*/")) == []
    assert host.ask(host.run("true", {}), "print(1)") == "1"
    assert shutil.which("uv", path=host.environ["PATH"])
