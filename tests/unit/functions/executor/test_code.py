"""An executor runs the code of now or is replaced (CODE-1, CODE-2), and says what it cannot run
(ABLE-1)."""

from __future__ import annotations

import json
import os
import py_compile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.functions.executor.files import AppFiles
from holdfast.wire.calls import PHASE_IDLE, PHASE_LOADING, PHASE_UNABLE
from tests.unit.functions.executor.scripted_agent import ScriptedAgent, error_of

Start = Callable[..., ScriptedAgent]
APP = """
@holdfast.task
def here() -> int:
    return 1

@holdfast.task
def there() -> int:
    import kept
    return kept.VALUE
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    agents: list[ScriptedAgent] = []

    def begin(app: str = APP) -> ScriptedAgent:
        agents.append(ScriptedAgent(tmp_path / str(len(agents)), app))
        hello = agents[-1].accept()
        if not hello.want:  # it still imports
            agents[-1].hear(lambda frame: frame.want == 1)
        return agents[-1]

    (tmp_path / "0").mkdir()
    yield begin
    for agent in agents:
        agent.close()


def write(agent: ScriptedAgent, name: str, text: str) -> None:
    """Write a file as an editor does, with times of its own, so that no test waits for a clock."""
    path = agent.folder / name
    before = path.stat().st_mtime_ns if path.exists() else 10**18
    path.write_text(text)
    os.utime(path, ns=(before + 1, before + 1))  # one nanosecond, in the same second


@pytest.mark.parametrize(
    "change",
    [
        lambda agent: write(agent, "pages.py", (agent.folder / "pages.py").read_text()),
        lambda agent: write(agent, "kept.py", "VALUE = 3\n"),
        lambda agent: os.replace(agent.folder / "other.py", agent.folder / "kept.py"),
        lambda agent: (agent.folder / "kept.py").unlink(),
    ],
    ids=["the module", "a module that a call imported", "another inode", "no file"],
)
def test_a_changed_file_replaces_it_before_the_next_batch(
    start: Start, tmp_path: Path, change: Callable[[ScriptedAgent], object]
) -> None:
    """CODE-1: without a word, so that the batch is another executor's."""
    (tmp_path / "0" / "kept.py").write_text("VALUE = 2\n")
    (tmp_path / "0" / "other.py").write_text("VALUE = 3\n")
    for name in ("kept.py", "other.py"):
        os.utime(tmp_path / "0" / name, ns=(10**18, 10**18))
    agent = start()
    (end,) = agent.run(1, ("there", {}))
    assert json.loads(end.value) == 2
    change(agent)
    agent.say(batches=[agent.batch(2, ("here", {}))])
    assert agent.wait() == 0
    assert (2, 0) not in agent.ends
    assert agent.place()[2] == PHASE_IDLE


def test_bytecode_of_another_version_is_not_read(start: Start) -> None:
    """CODE-2: a file of the same size, changed in the second of its compilation."""
    for number in (1, 2, 3):
        text = APP.replace("return 1", f"return {number}")
        if number == 1:
            agent = start(text)
        else:
            write(agent, "pages.py", "import holdfast\n" + text)
            agent.close()
            agent = restart(agent)
        (end,) = agent.run(1, ("here", {}))
        assert json.loads(end.value) == number
        compile_as_others_do(agent.folder / "pages.py")
    agent.close()


def compile_as_others_do(path: Path) -> None:
    """Have bytecode of a file be there, written in the second of its change."""
    compiled = py_compile.compile(str(path))
    assert compiled is not None
    os.utime(compiled, ns=(path.stat().st_mtime_ns,) * 2)


def restart(agent: ScriptedAgent) -> ScriptedAgent:
    """Start another executor on the files of one that is over."""
    text = (agent.folder / "pages.py").read_text()
    for name in ("s", "place"):
        (agent.folder / name).unlink()
    (agent.folder / "blobs").rmdir()
    new = ScriptedAgent(agent.folder, text.removeprefix("import holdfast\n"))
    new.accept()
    return new


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import a_package_that_is_missing\n", "ModuleNotFoundError"),
        ("import sys; sys.exit(0)\n", "SystemExit"),
        ("raise KeyError('HOME')\n", "KeyError"),
        ("def broken(:\n", "SyntaxError"),
        ("import os; os.chdir('/'); os.umask(0); raise OSError(1)\n", "OSError"),
        (
            "class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd\n",
            "pages.Odd",
        ),
    ],
)
def test_an_app_that_cannot_be_imported_is_told_by_its_calls_and_replaces_the_executor(
    start: Start, source: str, kind: str
) -> None:
    agent = start(source)
    ends = agent.run(1, ("here", {}), ("here", {}))
    assert [(error_of(end).kind, error_of(end).unable) for end in ends] == [(kind, True)] * 2
    assert agent.wait() == 1
    assert agent.place()[2] == PHASE_UNABLE
    last = agent.read("stderr").splitlines()[-1]
    assert last.startswith("[holdfast] module pages cannot be imported on host box: ")


def test_an_import_that_ends_the_process_is_where_the_place_says(
    start: Start, tmp_path: Path
) -> None:
    agent = ScriptedAgent(tmp_path / "0", "import os; os._exit(0)\n")
    try:
        assert agent.process.wait(20) == 0
        assert agent.place() == (0, 0, PHASE_LOADING, 0)
    finally:
        agent.close()


def test_a_failed_import_that_was_mended_is_not_told_any_more(start: Start) -> None:
    agent = start("undefined_name\n")
    write(agent, "pages.py", "import holdfast\n" + APP)
    agent.say(batches=[agent.batch(1, ("here", {}))])
    assert agent.wait() == 0
    assert agent.ends == {}


def test_a_missing_function_is_told_and_the_executor_stays(start: Start) -> None:
    agent = start()
    (end,) = agent.run(1, ("absent", {}))
    assert (error_of(end).kind, error_of(end).unable) == ("NotATask", True)
    (end,) = agent.run(2, ("here", {}))
    assert json.loads(end.value) == 1
    agent.say(leave=True)
    assert agent.wait() == 0


def test_it_leaves_as_unable_where_its_last_call_had_no_function(start: Start) -> None:
    """Its call then goes to another host."""
    agent = start()
    agent.run(1, ("absent", {}))
    agent.say(leave=True)
    assert agent.wait() == 1
    assert agent.place()[2] == PHASE_UNABLE


def test_files_outside_of_the_app_and_of_packages_in_it_are_not_watched(tmp_path: Path) -> None:
    files = AppFiles(str(tmp_path))
    files.note_imports(0.0)
    assert not files.changed()
    inside = tmp_path / "site-packages" / "x.py"
    assert not files.is_own(str(inside))
    assert files.is_own(str(tmp_path / "x.py"))
    assert not AppFiles("").is_own("/x.py")
