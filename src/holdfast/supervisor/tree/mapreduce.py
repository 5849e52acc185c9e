"""The script's side of a tree: start a node on each host, send each its place, receive one
report."""

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.errors import HoldfastError, ValidationError
from holdfast.supervisor.futures.waits import as_completed
from holdfast.supervisor.rosters.failures import HostLost
from holdfast.supervisor.rosters.groups import Process, ProcessGroup
from holdfast.supervisor.rosters.hosts import Host
from holdfast.supervisor.tree.functions import find_folders, name_function
from holdfast.supervisor.tree.messages import Meeting, NodeOrder, Partial, plain, read_message

WIDTH = 16
MEET_SECONDS = 20.0  # for the nodes to start
MERGE_SECONDS = 20.0  # for each level of the tree

logger = logging.getLogger("holdfast.supervisor")


class Reduction(NamedTuple):
    """The result of a tree. value: the merged value; None where no host had one. missing: host →
    why its part is missing."""

    value: Any
    missing: dict[Host, str]


class GroupMaker(Protocol):
    """`Context.create_process_group`."""

    def __call__(
        self,
        hosts: Sequence[Host],
        args: Sequence[str],
        /,
        *,
        env: Mapping[str, str] | None,
        name: str,
    ) -> ProcessGroup: ...


def find_parent(index: int, width: int) -> int | None:
    """Return a node's parent in a tree of that width, numbered from the root, level by level; None
    at the root."""
    return (index - 1) // width if index else None


def count_children(index: int, count: int, width: int) -> int:
    """Count a node's children in a tree of `count` nodes."""
    return max(0, min(width, count - 1 - index * width))


def measure_depth(index: int, width: int) -> int:
    """Count the levels between a node and the root."""
    depth = 0
    while index:
        index = (index - 1) // width
        depth += 1
    return depth


def map_and_reduce(
    create: GroupMaker,
    hosts: Sequence[Host],
    map: Callable[[Any], Any] | str,
    reduce: Callable[[Any, Any], Any] | str,
    inputs: Sequence[Any] | None,
    *,
    seconds: float,
    width: int,
    python: str,
    env: Mapping[str, str] | None,
) -> Reduction:
    """Run `map` on every host and merge the results. See `Context.mapreduce`."""
    chosen = list(hosts)
    given = [None] * len(chosen) if inputs is None else list(inputs)
    if len(given) != len(chosen):
        raise ValidationError(
            f"{len(given)} inputs for {len(chosen)} hosts: give one for each", field="inputs"
        )
    if width < 1:
        raise ValidationError("the width of a tree is 1 or more", field="width")
    functions = name_function(map), name_function(reduce)
    missing = {host: str(host.make_error()) for host in chosen if host.connection_lost()}
    missing |= {
        h: "no manager has come for it" for h in chosen if not h.attached and h not in missing
    }
    there = [
        (host, value) for host, value in zip(chosen, given, strict=True) if host not in missing
    ]
    if not there:
        return Reduction(None, missing)
    nodes = create(
        [host for host, _ in there],
        [python, "-P", "-m", "holdfast.supervisor.tree.node"],
        env=env,
        name="tree{rank}",
    )
    with _ended(nodes):
        ports = _meet(nodes, missing)
        living = [node for node in nodes if node in ports]
        values = dict(there)
        value = _grow(living, ports, values, functions, seconds, width, missing) if living else None
    return Reduction(value, missing)


@contextlib.contextmanager
def _ended(nodes: ProcessGroup) -> Iterator[None]:
    try:
        yield
    finally:
        for ended in nodes.end(grace_seconds=1):
            ended.exception()
        nodes.forget()


def _meet(nodes: ProcessGroup, missing: dict[Host, str]) -> dict[Process, int]:
    """Send each node the key of the tree, and return the port on which each node listens."""
    key = secrets.token_hex(32)
    for node in nodes:
        address = node.host.facts.address if node.host.facts else ""
        with contextlib.suppress(HostLost):
            node.send(plain(Meeting(key, address)))
    ports: dict[Process, int] = {}
    answers = {node.recv(): node for node in nodes}
    with contextlib.suppress(TimeoutError):
        for future in as_completed(answers, timeout=MEET_SECONDS):
            node = answers[future]
            try:
                ports[node] = future.result()["port"]
            except (HoldfastError, LookupError, TypeError) as error:
                missing[node.host] = str(error)
    for node in nodes:
        if node not in ports:
            missing.setdefault(node.host, f"its node did not start within {MEET_SECONDS:g} s")
    return ports


def _grow(
    nodes: list[Process],
    ports: dict[Process, int],
    values: dict[Host, Any],
    functions: tuple[str, str],
    seconds: float,
    width: int,
    missing: dict[Host, str],
) -> Any:
    """Send each node its place, and receive the root's report."""
    deepest = measure_depth(len(nodes) - 1, width)
    answer, folders = nodes[0].recv(), find_folders()
    for index, node in enumerate(nodes):
        above = find_parent(index, width)
        parent = nodes[above] if above is not None else None
        facts = parent.host.facts if parent is not None else None
        order = NodeOrder(
            number=index,
            map=functions[0],
            reduce=functions[1],
            folders=folders,
            input=values[node.host],
            parent=(facts.address, ports[parent]) if parent is not None and facts else None,
            children=count_children(index, len(nodes), width),
            seconds=seconds,
            merge_seconds=seconds + MERGE_SECONDS * (deepest - measure_depth(index, width)),
        )
        with contextlib.suppress(HostLost):  # its part is missing from the report
            node.send(plain(order))
    try:
        report = read_message(answer.result(seconds + MERGE_SECONDS * (deepest + 1)), Partial)
    except (HoldfastError, TimeoutError) as error:
        logger.warning("the root of the tree said nothing: %s", error)
        for node in nodes:
            missing[node.host] = f"the root of the tree, {nodes[0].host}, said nothing: {error}"
        return None
    heard = set(report.numbers)
    for index, node in enumerate(nodes):
        if index in report.failed:
            missing[node.host] = report.failed[index]
        elif index not in heard:
            missing[node.host] = "nothing was heard of it in time"
    return report.value
