"""The code of the user may do anything to its process, and pays for it alone: one real executor runs
each call of a table, and after each one the next finds the process as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.calls import PHASE_UNLOADING
from tests.unit.functions.executor.scripted_agent import ScriptedAgent, error_of

APP = """
import asyncio, atexit, contextlib, contextvars, faulthandler, io, json, multiprocessing, os, resource
import signal, socket, subprocess, sys, tempfile, threading, time

var = contextvars.ContextVar("var", default="clean")
loops = []

@holdfast.task
async def state() -> dict:
    mask = os.umask(0o022); os.umask(mask)
    loops.append(asyncio.get_running_loop())
    await asyncio.sleep(0.05)
    return {
        "folder": os.getcwd(), "var": var.get(), "umask": mask, "recursion": sys.getrecursionlimit(),
        "handlers": [str(signal.getsignal(n)).split(" at ")[0] for n in (2, 10, 14, 15, 17)],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "alarm": list(signal.getitimer(signal.ITIMER_REAL)),
        "out": [type(f).__name__ + str(f.closed) for f in (sys.stdout, sys.stderr)],
        "files": [os.fstat(fd).st_ino for fd in (1, 2)], "pid": os.getpid(),
        "tasks": len(asyncio.all_tasks()),
    }

class Mute(Exception):
    def __str__(self): raise RuntimeError("no text")
class Nothing(Exception):
    def __str__(self): return None
class Leaves(Exception):
    def __str__(self): sys.exit(3)
    __repr__ = __str__
class Meta(type):
    def __getattribute__(cls, name): raise OSError("no name")
class Nameless(Exception, metaclass=Meta): ...
class Moves(Exception):
    def __str__(self): os.chdir("/"); return "moved"

class Endless:
    def __fspath__(self): raise KeyboardInterrupt

@holdfast.task
def act(source: str):
    space = dict(globals())
    exec("def body():\\n    " + source.replace("\\n", "\\n    "), space)
    return space["body"]()

@holdfast.task
async def act_later(source: str):
    space = dict(globals())
    exec("async def body():\\n    " + source.replace("\\n", "\\n    "), space)
    return await space["body"]()

@holdfast.model("sour")
def sour(): return "s"
@sour.unloader
def end_sour(value): os.chdir("/"); sys.exit("device is gone")
@holdfast.model("sweet")
def sweet(): return "t"
@holdfast.task(model=sour)
def with_sour() -> str: return sour()
@holdfast.task(model=sweet)
def with_sweet() -> str: return sweet()
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedAgent]:
    agent = ScriptedAgent(tmp_path_factory.mktemp("user"), APP, {})
    hello = agent.accept()
    if not hello.want:
        agent.hear(lambda frame: frame.want == 1)
    yield agent
    agent.close()


class Caller:
    """Runs single calls, each as a batch of its own."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self.agent = agent
        self.number = max((batch for batch, _ in agent.ends), default=0)

    def run(self, name: str, **more: Any) -> tuple[bool, Any]:
        """Return whether it failed, and its result or its error."""
        self.number += 1
        model = more.pop("model", None)
        [end] = self.agent.run(self.number, (name, more), model=model)
        return end.error, error_of(end) if end.error else json.loads(end.value)

    def state(self) -> Any:
        failed, found = self.run("state")
        assert not failed, found
        return found


@pytest.fixture
def caller(agent: ScriptedAgent) -> Iterator[Caller]:
    caller = Caller(agent)
    before = caller.state()
    yield caller
    assert caller.state() == before
    assert agent.process.poll() is None


LEFTOVERS = {
    "another folder": "os.chdir('/')",
    "a folder that is gone": "d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "the umask": "os.umask(0o777)",
    "a context variable": "var.set('dirty')",
    "a handler": "signal.signal(15, signal.SIG_IGN); signal.signal(17, signal.SIG_IGN)",
    "an alarm": "signal.signal(14, lambda *_: os._exit(9)); signal.alarm(100)",
    "an alarm without a handler": "signal.setitimer(signal.ITIMER_REAL, 0.01)",
    "blocked signals": "signal.pthread_sigmask(signal.SIG_BLOCK, {15, 10})",
    "a dump of threads that exits": "faulthandler.dump_traceback_later(0.02, exit=True)",
    "a limit of recursion": "sys.setrecursionlimit(60)",
    "another stdout": "sys.stdout = io.StringIO(); print('lost')",
    "no stdout": "sys.stdout = None",
    "a closed stdout": "sys.stdout.close()",
    "a detached stderr": "sys.stderr.detach()",
    "a redirection that is never over": "contextlib.redirect_stderr(io.StringIO()).__enter__()",
    "other outputs": "fd = os.open('/dev/null', 1); os.dup2(fd, 1); os.dup2(fd, 2)",
    "a closed output": "os.close(1); time.sleep(0.002)",
    "another time limit of sockets": "socket.setdefaulttimeout(0.001)",
    "a broken json": "json.dumps = json.loads = None",
    "a thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a loop of its own": "asyncio.run(asyncio.sleep(0))",
    "no loop": "asyncio.set_event_loop(None)",
}


@pytest.mark.parametrize("name", LEFTOVERS)
def test_what_a_call_leaves_does_not_reach_the_next(caller: Caller, name: str) -> None:
    """USER-2."""
    failed, found = caller.run("act", source=LEFTOVERS[name] + "\nreturn 'done'")
    assert (failed, found) == (False, "done")


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.get_running_loop().create_task(asyncio.sleep(60))",
        "asyncio.get_running_loop().stop()",
        "await asyncio.sleep(0); asyncio.get_running_loop().stop(); await asyncio.sleep(0.01)",
        "asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)",
        "var.set('dirty')",
        "async def stays():\n    try: await asyncio.sleep(60)\n    finally: os.chdir('/')\n"
        "asyncio.create_task(stays()); await asyncio.sleep(0)",
        "asyncio.get_running_loop().set_exception_handler(print)",
    ],
)
def test_what_a_coroutine_leaves_does_not_reach_the_next(caller: Caller, source: str) -> None:
    caller.run("act_later", source=source)


FAILURES = {
    "raise Mute(1)": ("pages.Mute", "(its text cannot be read)"),
    "raise Nothing(1)": ("pages.Nothing", "(its text cannot be read)"),
    "raise Leaves(1)": ("pages.Leaves", "(its text cannot be read)"),
    "raise Nameless()": ("(its text cannot be read)", ""),
    "raise Moves()": ("pages.Moves", "moved"),
    "raise ExceptionGroup('two', [Mute(), Leaves()])": ("ExceptionGroup", "two (2 sub-exceptions)"),
    "sys.exit('API_KEY is missing')": ("SystemExit", "API_KEY is missing"),
    "raise KeyboardInterrupt": ("KeyboardInterrupt", ""),
    "import _thread; _thread.interrupt_main(); time.sleep(1)": ("KeyboardInterrupt", ""),
    "os.kill(os.getpid(), 2); time.sleep(1)": ("KeyboardInterrupt", ""),
    "raise GeneratorExit": ("GeneratorExit", ""),
    "raise MemoryError": ("MemoryError", ""),
    "return b'x' * (1 << 60)": ("MemoryError", ""),
    "def deep(): return deep()\nreturn deep()": ("RecursionError", "maximum recursion depth"),
    "sys.setrecursionlimit(30); sys.setrecursionlimit(30)\nreturn [act]": None,
    "a = []; a.append(a); return a": None,
    "return (n for n in range(3))": None,
    "return threading.Lock()": None,
    "return '\\ud800'": None,
    "return 1 << 70": None,
    "return Endless()": None,
    "return {1.5: {2: Endless}}": None,
}


@pytest.mark.parametrize("source", FAILURES, ids=range(len(FAILURES)))
def test_a_call_that_fails_in_an_odd_way_fails_alone(caller: Caller, source: str) -> None:
    """USER-1."""
    failed, error = caller.run("act", source=source)
    wanted = FAILURES[source]
    if wanted is not None:
        assert failed
        assert (error.kind, error.message[: len(wanted[1])]) == wanted


def test_a_coroutine_that_a_plain_function_returns_is_run(caller: Caller) -> None:
    source = "async def one(): return 1\nreturn one()"
    assert caller.run("act", source=source) == (False, 1)


CHILDREN = {
    "p = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)); p.start()\n"
    "time.sleep(0.1); p.terminate(); p.join(10); return p.exitcode": -15,
    "p = subprocess.Popen(['sleep', '60']); time.sleep(0.1); p.send_signal(2); return p.wait(10)": -2,
    "with multiprocessing.get_context('fork').Pool(2) as pool: return pool.map(abs, [-1, -2])": [1, 2],
    "pid = os.fork()\nif pid == 0: return 'twice'\nreturn os.waitpid(pid, 0)[1]": 0,
    "pid = os.fork()\nif pid == 0: sys.exit(7)\nreturn os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])": 7,
    "pid = os.fork()\nif pid == 0: 1 / 0\nreturn os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])": 1,
    "pid = os.fork()\nif pid == 0: holdfast.context().checkpoint.save(b'x'); return\n"
    "return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])": 0,
    "pid = os.fork()\nif pid == 0: sour(); return\nreturn os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])": 0,
}  # fmt: skip


@pytest.mark.parametrize("source", CHILDREN, ids=range(len(CHILDREN)))
def test_processes_of_a_call_are_as_elsewhere(caller: Caller, source: str) -> None:
    """USER-3."""
    assert caller.run("act", source=source) == (False, CHILDREN[source])


def test_an_unloader_that_exits_fails_no_call_of_the_next_model(caller: Caller) -> None:
    assert caller.run("with_sour", model="sour") == (False, "s")
    assert caller.run("with_sweet", model="sweet") == (False, "t")
    told = caller.agent.read("stderr")
    assert "[holdfast] the unloader of model sour failed:" in told
    assert "SystemExit: device is gone" in told


def test_an_unloader_that_ends_the_process_is_where_the_place_says(tmp_path: Path) -> None:
    """PLACE-2: the unloader has a phase, and so a time, of its own."""
    ends = APP.replace('os.chdir("/"); sys.exit("device is gone")', "os._exit(7)")
    agent = ScriptedAgent(tmp_path, ends, {})
    try:
        agent.accept()
        agent.run(1, ("with_sour", {}), model="sour")
        agent.say(batches=[agent.batch(2, ("with_sweet", {}), model="sweet")])
        assert agent.wait() == 7
        assert agent.place()[2] == PHASE_UNLOADING
    finally:
        agent.close()


def test_neither_an_exit_handler_nor_a_thread_keeps_an_executor(tmp_path: Path) -> None:
    agent = ScriptedAgent(tmp_path, APP, {})
    left = (
        "atexit.register(time.sleep, 600)\natexit.register(lambda: 1 / 0)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()"
    )
    try:
        agent.accept()
        assert not agent.run(1, ("act", {"source": left}))[0].error
        agent.say(leave=True)
        assert agent.wait() == 0
    finally:
        agent.close()
