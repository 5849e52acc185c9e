"""Run a command whose checkpoints stay in the memory of its hosts: a restart loads them from there,
not from storage.

    python memory_checkpoints.py --hosts 2 --per-host 8 -- python train.py
    python memory_checkpoints.py --hosts 2 --local -- python train.py      # everything on this machine

On each host a server, a CPU process in a group of its own, survives the restarts of the training. A
rank saves to the server beside it, which passes a copy to the next host's: any one host may be
lost. Ranks must wait for each other, as those of a collective do: if ranks are more than
`KEEP_STEPS` checkpoints apart, no step is complete. In the training:

    from memory_checkpoints import load, save
    found = load()                      # (step, bytes), the newest step that every rank has, or None
    save(step, data)                    # every few steps; storage still wants one now and then

Copy it and edit it: `choose_step` says where a restart begins. This file must be readable on every
host, and the hosts must reach each other.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import secrets
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import (  # bytes and its keyed handshake only: nothing is unpickled
    Client,
    Connection,
    Listener,
)
from typing import Any

from holdfast.supervisor import (
    Context,
    Host,
    HostLost,
    Process,
    ProcessEnded,
    ProcessFailedToStart,
    RunFailure,
    get_message_queue,
    replace_lost,
    run_group,
    wait,
)

KEEP_STEPS = (
    3  # of each rank: one may be a step ahead of the others, and a copy is at most a step behind
)
SERVER_SECONDS = 30.0
DELAY_SECONDS = 1.0
KEY, SERVERS, START, ATTEMPT = (
    "MEMORY_KEY",
    "MEMORY_SERVERS",
    "MEMORY_START",
    "TORCHELASTIC_RESTART_COUNT",
)

log = logging.getLogger("policy")
Address = tuple[str, int]
Kept = dict[int, dict[int, tuple[int, bytes]]]  # rank → step → its attempt, and the data


# ---- in the training


def save(step: int, data: bytes) -> None:
    """Keep this rank's state in the memory of its host and of another. Return when the first has
    it, and the other has the one before. Raises RuntimeError if another attempt of the training
    runs by now.
    """
    host, port = json.loads(os.environ[SERVERS])[int(os.environ["GROUP_RANK"])]
    with Client((host, port), authkey=bytes.fromhex(os.environ[KEY])) as server:
        put(server, int(os.environ["RANK"]), step, int(os.environ[ATTEMPT]), data, copy=True)


def load() -> tuple[int, bytes] | None:
    """Return the step to begin at and this rank's state then, or None."""
    start = json.loads(os.environ[START])
    if start is None:
        return None
    rank = os.environ["RANK"]
    host, port = start["where"][rank]
    with Client((host, port), authkey=bytes.fromhex(os.environ[KEY])) as server:
        server.send_bytes(json.dumps({"get": start["step"], "rank": int(rank)}).encode())
        return start["step"], server.recv_bytes()


def put(server: Connection, rank: int, step: int, attempt: int, data: bytes, copy: bool) -> None:
    """Hand a checkpoint to a server. Raises RuntimeError in an earlier attempt."""
    server.send_bytes(
        json.dumps({"put": step, "rank": rank, "attempt": attempt, "copy": copy}).encode()
    )
    server.send_bytes(data)
    if server.recv_bytes() != b"kept":
        raise RuntimeError(
            f"attempt {attempt} of the training is over: what rank {rank} saves is not kept any "
            "more"
        )


# ---- the server on each host


class Line:
    """The connection to the next host: one copy of each rank at a time; a rank waits until its last
    copy has arrived."""

    def __init__(self, address: Address, key: bytes) -> None:
        self.address, self.key = address, key
        self.waiting: dict[int, tuple[int, int, bytes]] = {}
        self.ended = False
        self.changed = threading.Condition()
        threading.Thread(target=self.run, daemon=True).start()

    def hand_over(self, rank: int, step: int, attempt: int, data: bytes) -> None:
        """Queue a copy. Return when the one before has been passed on."""
        with self.changed:
            self.changed.wait_for(lambda: rank not in self.waiting or self.ended)
            if not self.ended:
                self.waiting[rank] = (step, attempt, data)
                self.changed.notify_all()

    def run(self) -> None:
        """Pass copies on. A copy that cannot be passed on is missing there until the next
        checkpoint."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.ended)
                if self.ended:
                    return
                rank, (step, attempt, data) = next(iter(self.waiting.items()))
            with contextlib.suppress(Exception), Client(self.address, authkey=self.key) as server:
                put(server, rank, step, attempt, data, copy=False)
            with self.changed:
                self.waiting.pop(rank, None)
                self.changed.notify_all()

    def end(self) -> None:
        """Stop waiting for that host, which may be frozen or cut off."""
        with self.changed:
            self.ended = True
            self.waiting.clear()
            self.changed.notify_all()


class Server:
    """Checkpoints in memory. The script tells it where copies go and which attempt begins, and asks
    for its steps."""

    def __init__(self) -> None:
        self.kept: Kept = {}
        self.attempt = -1
        self.lock = threading.Lock()
        self.line: Line | None = None

    def serve(self) -> None:
        """Serve until the script ends it."""
        queue = get_message_queue()
        hello = queue.recv()
        key = bytes.fromhex(hello["key"])
        listener = Listener((hello["address"], 0), backlog=128, authkey=key)
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()
        queue.send({"port": listener.address[1]})
        while True:
            order = queue.recv()
            if "next" in order:
                self.turn_to(tuple(order["next"]) if order["next"] else None, key)
            if "attempt" in order:
                self.begin(order["attempt"], order["step"])
            with self.lock:
                kept = [[rank, step] for rank, steps in self.kept.items() for step in steps]
            queue.send({"kept": kept, "order": order["order"]})

    def turn_to(self, address: Address | None, key: bytes) -> None:
        """Send copies there from now on."""
        with self.lock:
            old = self.line
            if old is not None and old.address == address:
                return
            self.line = Line(address, key) if address else None
        if old is not None:
            old.end()

    def begin(self, attempt: int, step: int) -> None:
        """Begin an attempt after `step`: later steps are dropped, and ranks of an earlier attempt
        refused."""
        with self.lock:
            self.attempt = attempt
            for steps in self.kept.values():
                for beyond in [
                    at for at, (made_by, _) in steps.items() if at > step and made_by < attempt
                ]:
                    del steps[beyond]

    def keep(self, rank: int, step: int, attempt: int, data: bytes) -> bool:
        """Keep a checkpoint; False if it is of another attempt than the one that runs."""
        with self.lock:
            if attempt < self.attempt:
                return False
            steps = self.kept.setdefault(rank, {})
            steps[step] = (attempt, data)
            for old in sorted(steps)[:-KEEP_STEPS]:
                del steps[old]
            return True

    def accept(self, listener: Listener) -> None:
        """Accept connections that know the key, until the listener is closed."""
        while True:
            try:
                peer = listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue
            except OSError as error:
                if error.errno in (None, errno.EBADF):
                    return
                time.sleep(DELAY_SECONDS)  # such as too many open files, which pass
                continue
            threading.Thread(target=self.answer, args=(peer,), daemon=True).start()

    def answer(self, peer: Connection) -> None:
        """Answer one connection."""
        with peer, contextlib.suppress(EOFError, OSError):
            while True:
                asked = json.loads(peer.recv_bytes())
                rank = asked["rank"]
                if "get" in asked:
                    with self.lock:
                        _, data = self.kept[rank][asked["get"]]
                    peer.send_bytes(data)
                    continue
                data = peer.recv_bytes()
                kept = self.keep(rank, asked["put"], asked["attempt"], data)
                line = self.line
                if kept and asked["copy"] and line is not None:
                    line.hand_over(rank, asked["put"], asked["attempt"], data)
                peer.send_bytes(b"kept" if kept else b"over")


# ---- in the script


class Memory:
    """The servers: one for each host, started where one is missing."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.key = ctx, secrets.token_hex(32)
        self.orders = 0
        self.servers: dict[Host, Process] = {}
        self.addresses: dict[Host, Address] = {}

    def tend(self, hosts: list[Host]) -> None:
        """Start missing servers. Raises HostLost, ProcessEnded or TimeoutError if a host cannot
        have one."""
        command = [sys.executable, os.path.abspath(__file__), "--serve"]
        begun: dict[Host, Process] = {}
        for host in hosts:
            host.hostname().result()
            if host not in self.servers or self.servers[host].returncode().done():
                [begun[host]] = self.ctx.create_process_group(
                    [host], command, name=f"memory{host.number}"
                )
                address = host.facts.address if host.facts else ""
                begun[host].send({"key": self.key, "address": address})
        for host, process in begun.items():
            port = process.recv(lambda message: "port" in message).result(SERVER_SECONDS)["port"]
            self.addresses[host] = (host.facts.address if host.facts else "", port)
            self.servers[host] = process  # all at once: the next host may be lost
        self.servers = {host: self.servers[host] for host in hosts}

    def tell(self, orders: dict[Host, dict[str, Any]]) -> dict[Host, list[list[int]]]:
        """Give each server its order; return the steps of those that answer."""
        self.orders += 1
        number, answers = self.orders, {}
        for host, order in orders.items():
            answers[self.servers[host].recv(lambda message: message.get("order") == number)] = host
            self.servers[host].send(order | {"order": number})
        done = wait(answers, timeout=SERVER_SECONDS).done
        return {
            answers[future]: future.result()["kept"]
            for future in done
            if future.exception() is None
        }

    def make_env(self, hosts: list[Host], world_size: int, attempt: int) -> dict[str, str]:
        """Make the environment for `save` and `load`. From now on the servers, in a ring, take
        checkpoints of this attempt only."""
        ring = {host: hosts[(index + 1) % len(hosts)] for index, host in enumerate(hosts)}
        kept = self.tell(
            {
                h: {"next": self.addresses[after] if after is not h else None}
                for h, after in ring.items()
            }
        )
        start = choose_step(kept, world_size)
        self.tell({host: {"attempt": attempt, "step": start[0] if start else -1} for host in hosts})
        found = None
        if start is not None:
            step, where = start
            found = {
                "step": step,
                "where": {rank: self.addresses[host] for rank, host in where.items()},
            }
        log.info(
            "the training begins %s",
            f"at step {start[0]}, from memory" if start else "without a checkpoint in memory",
        )
        addresses = json.dumps([self.addresses[host] for host in hosts])
        return {KEY: self.key, SERVERS: addresses, START: json.dumps(found), ATTEMPT: str(attempt)}


def choose_step(
    kept: dict[Any, list[list[int]]], world_size: int
) -> tuple[int, dict[int, Any]] | None:
    """Find the newest step that every rank has somewhere, and where."""
    places: dict[int, dict[int, Any]] = {}
    for host, entries in kept.items():
        for rank, step in entries:
            places.setdefault(step, {}).setdefault(rank, host)
    complete = [step for step, ranks in places.items() if set(ranks) >= set(range(world_size))]
    return (max(complete), places[max(complete)]) if complete else None


def run_once(
    ctx: Context, memory: Memory, hosts: list[Host], options: argparse.Namespace, restarts: int
) -> RunFailure | None:
    """Start every rank and wait. Return None when all ended with 0, else what went wrong first. The
    servers go on."""
    try:
        memory.tend(hosts)
        env = memory.make_env(hosts, len(hosts) * options.per_host, restarts)
    except (HostLost, ProcessEnded, ProcessFailedToStart, TimeoutError) as error:
        return RunFailure(str(error), hosts[0])
    return run_group(ctx, hosts, options.command, options.per_host, restarts=restarts, env=env)


def main() -> int:
    """Run the command until it succeeds, or has failed too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=10)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="start the host managers here too")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(port=options.port, log_format="logs/{name}.txt") as ctx:
        log.info("start a host manager on each machine: %s", " ".join(ctx.manager_command()))
        hosts = ctx.request_hosts(options.hosts)
        bring = ctx.start_local_managers if options.local else None
        if bring is not None:
            bring(options.hosts)
        memory = Memory(ctx)
        for restarts in range(options.max_restarts + 1):
            failure = run_once(ctx, memory, hosts, options, restarts)
            if failure is None:
                log.info("done after %d restarts", restarts)
                return 0
            log.warning("attempt %d: %s", restarts, failure)
            hosts = replace_lost(ctx, hosts, bring)  # in place: ranks stay beside their data
            time.sleep(DELAY_SECONDS)
    log.error("given up after %d restarts: %s", options.max_restarts, failure)
    return 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        Server().serve()
    else:
        sys.exit(main())
