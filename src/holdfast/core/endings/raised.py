"""The part of a log that tells of the end: the exceptions that ended programs, and the last words.

A log holds tracebacks that ended nothing: of an exception that was caught and logged, of a thread,
of an object that could not be removed at the end. A launcher ends with a traceback of its own, which
tells only that a rank failed. And what one task prints may come from several ranks.

LAST-1  What a program printed and survived is no evidence of its end. An exception ended a program
        if few lines follow it and none says that the program went on. Where no exception did, the
        last lines count, without what stands before a line of progress or before such a word.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from holdfast.core.endings.mistakes import MISTAKES
from holdfast.core.endings.patterns import CASCADE, OTHER_NCCL, TEXT
from holdfast.core.endings.wording import LogPart
from holdfast.core.logs.lines import NOISE, cut_line

LAST_LINES = 3
"""A tool's error takes no more lines at the end of a log; what stands before may be of another
matter."""
END_LINES = 8
"""A message that names a failure exactly may stand in the last lines that say something, so many of
them, and no more lines than these follow the exception that ended a program."""
NEAR_LINES = 20
"""A lost connection to a peer is reported at most so many lines before the exception that it
caused."""
_BARE_LINES = 6  # of a message of several lines
MAX_BLOCK_LINES = 24

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):?")
_BOX_END = re.compile(r"(?m:^[^\n╰]{0,40}╰─{4,200}╯[^\n]{0,40}\n)")
_REFUSED = re.compile(
    r"(?m:^(?:(?:SyntaxError|IndentationError|TabError): |\S{0,200}python[\d.]{0,6}: "
    r"(?:can't open file|No module named|Error while finding)).*$)"
)
_BARE = re.compile(r"(?m:^[A-Za-z_][\w.]{0,200}(?:Error|Exception|\.errors\.\w{1,60}): )")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,100}\))?(?::\s|:?$)")
_ENDED_NOTHING = re.compile(
    r"Exception ignored in|--- Logging error ---|Exception in thread|"
    r"\b(?:ERROR|WARNING|WARN|CRITICAL|DEBUG|INFO)\b"
)
_LAUNCHERS = re.compile(
    r"(?:[\w.]{1,100}\.)?(?:ChildFailedError|CalledProcessError|ProcessRaisedException"
    r"|ProcessExitedException|MultiprocessingError|BrokenProcessPool"
    r"|RuntimeError: (?:Engine core initialization failed|DataLoader worker \(pid\(s\)))"
)
_CHAINED = re.compile(
    r"(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\s{0,4}\Z"
)
_FOLLOWS = re.compile(
    r"\s*$| {4}\S|\s{1,80}(?:at |File\b|\^|~)|frame #\d|\s*(?:#\d{1,3}\s|\d{1,3}: 0x)|(?:Current t|T)hread 0x"
    r"|Extension modules: |Traceback \(most|[=\-_*]{5,}"
    r"|\s{0,8}(?:Root Cause|Failures:|<NO_OTHER_FAILURES>|\[\d{1,5}\]:$)"
    r"|\s{1,4}(?:time|host|rank|exitcode|error_file|traceback) {1,8}:|wandb: |\s*\d{1,3}%\|"
    r"|[^\n]{0,200}(?:closing signal SIG|failed \(exitcode: |Warning: |warnings\.warn\(|resource_tracker)"
    r"|(?:[\w./-]{1,80}: (?:line \d{1,6}: )?)?\s{0,8}\d{0,10} {0,9}(?:Aborted|Killed|Terminated|Segmentation fault)\b"
)
"""A line that follows an end and says nothing of its cause: of a stack, a launcher's table, a bar."""
_RANK = re.compile(r"\[?(?:rank|default)\d{1,5}\]?:|\d{1,5}: ")
_WENT_ON = re.compile(
    r"(?i:\b(?:retrying|trying again|fall(?:ing|s)? back|fell back|continuing|skipp(?:ed|ing)|recovered"
    r"|resum(?:ed|ing)|reconnect(?:ed|ing)|halv(?:ed|ing)|ignoring|using cpu)\b)"
)
_PROGRESS = re.compile(
    r"\b(?:[Ss]tep|[Ee]poch|[Ii]ter(?:ation)?|[Bb]atch|it)\b[ :=#\[(/]{0,4}\d|^\s{0,4}\d{1,3}%\|"
)
_OF_ENVIRON = re.compile(
    r'File "(?:<frozen os>|[^"\n]{1,300}/os\.py)", line \d{1,5}, in __getitem__'
)
_SECTION = re.compile(r"(?m:^\[std(?:out|err)\]\n)")


class Raised(NamedTuple):
    """An exception that ended a program. line: as in "ValueError: too small". block: that line and
    the rest of the message. rank: what a launcher puts before each line of a rank, such as
    "[rank0]: "; empty without a launcher. launcher: the launcher raised it for one of its ranks.
    before: the exceptions of its chain, from the first on. start, end: its place in the log."""

    line: str
    block: str
    rank: str
    launcher: bool
    before: tuple[str, ...] = ()
    start: int = 0
    end: int = 0


@lru_cache(maxsize=4)
def list_raised(text: str) -> tuple[Raised, ...]:
    """Return the exceptions that may have ended programs, in the order of the log."""
    found: list[Raised] = []
    for each in _list_raised(text):
        last = found[-1] if found else None
        chained = (
            last is not None and _CHAINED.search(text[last.end : each.start].rstrip()) is not None
        )
        if last is not None and chained:
            found[-1] = Raised(*each[:4], (*last.before, last.block), each.start, each.end)
        else:
            found.append(each)
    return tuple(found)


def _list_raised(text: str) -> Iterator[Raised]:
    for found in _TRACEBACK.finditer(text):
        at = found.start()
        begin = text.rfind("\n", 0, at) + 1
        rank = text[begin:at].removesuffix("Original ")
        if rank.strip("─ ╭") == "" and "╭" in rank:
            box = _BOX_END.search(text, at)
            raised = None if box is None else _read_raised(text, begin, box.end(), "")
        elif _ENDED_NOTHING.search(rank) or _ENDED_NOTHING.search(_line_before(text, begin)):
            raised = None
        else:
            raised = _read_raised(text, begin, text.find("\n", at) + 1 or len(text), rank)
        if raised is not None:
            yield raised


def _line_before(text: str, begin: int) -> str:
    end = max(begin - 1, 0)
    return text[text.rfind("\n", 0, end) + 1 : end]


def _read_raised(text: str, start: int, at: int, rank: str) -> Raised | None:
    """Read the exception of the traceback at `start`, whose frames begin at `at`."""
    lines = text[at:].splitlines(keepends=True)
    for number, line in enumerate(lines):
        at += len(line)
        own = NOISE.sub("", line.removeprefix(rank)).rstrip("\r\n")
        if own[:1].isspace() or not own:
            continue
        if not _EXCEPTION.match(own):
            return None
        block = [own]
        for more in lines[number + 1 : number + MAX_BLOCK_LINES]:
            if not more.startswith(rank) or not more.strip() or _TRACEBACK.search(more):
                break
            at += len(more)
            block.append(NOISE.sub("", more.removeprefix(rank)).rstrip("\r\n"))
        if any(map(_OF_ENVIRON.search, lines[max(0, number - 4) : number])):
            block.append("in os.environ")
        launcher = _LAUNCHERS.match(own) is not None
        return Raised(cut_line(own, 0, len(own)), "\n".join(block), rank, launcher, (), start, at)
    return None


@lru_cache(maxsize=4)
def list_ended(text: str) -> tuple[Raised, ...]:
    """Return the exceptions that ended programs, without those of launchers, in the order of the
    log (LAST-1)."""
    ended: list[Raised] = []
    raised = list_raised(text)
    for each in reversed(raised):
        later = next((e for e in raised if e.start >= each.end and e.rank == each.rank), None)
        open_ended = later is None or later.launcher or later in ended
        after = text[each.end : len(text) if later is None else later.start]
        if open_ended and not each.launcher and _is_short(_SECTION.split(after)[0], each.rank):
            ended.append(each)
    return tuple(reversed(ended))


def _is_short(after: str, rank: str) -> bool:
    """Return whether a rank said little after its exception, and not that it went on."""
    mark = rank.rstrip()
    lines = [
        line
        for line in after.splitlines()
        if (line.startswith(mark) if mark else _RANK.match(line) is None)
        and _FOLLOWS.match(line.removeprefix(rank)) is None
    ]
    return len(lines) <= END_LINES and not any(map(_WENT_ON.search, lines))


def find_exception(text: str) -> str | None:
    """Return the last line of the traceback that ended a program, such as "ValueError: too small",
    or what Python says of a program that it cannot run at all.

    A rank's own exception stands before the one that its launcher raised for it.
    """
    own = list_ended(text) or [each for each in list_raised(text) if each.launcher]
    if own:
        return own[-1].line
    *_, refused = [None, *_REFUSED.findall(text)]
    return None if refused is None else cut_line(refused, 0, len(refused))


def find_bare(text: str) -> str:
    """Return an exception among the last lines of a log that holds no traceback, because its tail
    begins behind it; "" where there is none."""
    lines = "\n".join(list_last_lines(text[-4096:], _BARE_LINES))
    found = None if list_raised(text) else _BARE.search(lines)
    return "" if found is None else lines[found.start() :]


def list_last_lines(text: str, most: int) -> Sequence[str]:
    """Return the last lines that say something of the end, at most so many: of standard error where
    any of its lines does (LAST-1)."""
    for part in reversed(_SECTION.split(text)):
        said = [line for line in part.splitlines() if _FOLLOWS.match(line) is None][-most:]
        for number in range(len(said) - 1, -1, -1):
            if _PROGRESS.search(said[number]) or _WENT_ON.search(said[number]):
                said = said[number + 1 :] or said[-1:]
                break
        if said:
            return said
    return ()


def find_last_line(text: str) -> str | None:
    """Return the last line that says something, unless it only tells of progress."""
    said = list_last_lines(text, 1)
    if not said or _PROGRESS.search(said[0]) or not re.search(r"[^\W\d_]{3}", said[0]):
        return None
    return cut_line(said[0], 0, len(said[0])) or None


def find_end(text: str, *, lines: int = END_LINES, before: int = 0) -> str:
    """Return what tells of the end, the exceptions of a chain from the first on.

    An exception that reports a peer's death counts with the exception before it, because that
    exception may have begun the fall. lines: number of last lines that count where no exception
    ended the program. before: number of lines before the exceptions that count too.
    """
    ended = list_ended(text)
    if not ended:
        return "\n".join(list_last_lines(text, lines))
    last: dict[str, list[Raised]] = {}
    for each in reversed(ended):
        own = last.setdefault(each.rank, [])
        if not own or tells_of_a_peer(own[-1]):
            own.append(each)
    kept = sorted((each for own in last.values() for each in own), key=lambda each: each.start)
    told = [list_last_lines(text[: kept[0].start], before)] if before else []
    told += [(*each.before, each.block) for each in kept]
    after = _SECTION.split(text[kept[-1].end :])[0]
    told.append([line for line in after.splitlines() if _FOLLOWS.match(line) is None])
    return "\n".join(line for part in told for line in part)


def find_raised(text: str) -> Raised | None:
    """Return the exception that ended the program: the last one, or, where that one tells of a peer,
    the first one of a neighbour whose own exceptions tell of none."""
    own = list_ended(text)
    if not own or not tells_of_a_peer(own[-1]):
        return own[-1] if own else None
    victims = {each.rank for each in own if tells_of_a_peer(each)}
    return next((each for each in own if each.rank not in victims), own[-1])


def tells_of_a_peer(raised: Raised) -> bool:
    """Return whether the exception reports a peer's death."""
    return any(pattern.search(raised.block) is not None for pattern in CASCADE + OTHER_NCCL)


_PASSES = re.compile(
    r"(?:[\w.]{1,100}\.)?(?:OSError|IOError|PermissionError|FileNotFoundError|BlockingIOError|MemoryError"
    r"|BrokenPipeError|EOFError|\w{0,40}(?:Timeout|Connect|HTTP|Http|URL|Socket|Network|Rpc|OutOfMemory)\w{0,40})\b"
)


@lru_cache(maxsize=4)
def began_with_passing(text: str) -> bool:
    """Return whether the exception that ended the program was raised while a failure was handled
    that may pass by itself (MISTAKE-1)."""
    raised = find_raised(text)
    return raised is not None and any(
        _PASSES.match(block) is not None or any(p.search(block) for p in TEXT if p not in MISTAKES)
        for block in raised.before
    )


def _say_raised(text: str) -> str:
    raised = find_raised(text)
    return find_bare(text) if raised is None else raised.block


@lru_cache(maxsize=4)
def _say_end_of(text: str) -> str:
    return find_end(text)


@lru_cache(maxsize=4)
def _say_near(text: str) -> str:
    return find_end(text, lines=NEAR_LINES, before=NEAR_LINES)


@lru_cache(maxsize=4)
def _say_last(text: str) -> str:
    return find_end(text, lines=LAST_LINES)


SAID: Mapping[LogPart, Callable[[str], str]] = {
    LogPart.END: _say_end_of,
    LogPart.NEAR: _say_near,
    LogPart.LAST: _say_last,
    LogPart.RAISED: _say_raised,
}
"""The part of a log in which a message counts → how it is read."""
