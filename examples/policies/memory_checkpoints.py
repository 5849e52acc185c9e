"""Run a command whose checkpoints stay in the memory of its hosts: a restart loads them from there, not from storage.

    python memory_checkpoints.py --hosts 2 --per-host 8 -- python train.py
    python memory_checkpoints.py --hosts 2 --local -- python train.py      # everything on this machine

On each host a server, a CPU process in a group of its own, survives the restarts of the training. A rank saves to the server
beside it, which passes a copy to the next host's: any one host may be lost. In the training:

    from memory_checkpoints import load, save
    found = load()                      # (step, bytes), the newest step that every rank has, or None
    save(step, data)                    # every few steps; storage still wants one now and then

Copy it and edit it: `choose_step` says where a restart begins. This file must be readable on every host, and the hosts must
reach each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import queue as queues
import secrets
import sys
import threading
import time
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
    ProcessFailedToStart,
    ProcessGroup,
    as_completed,
    get_message_queue,
    wait,
)

KEEP_STEPS = 3  # of each rank: ranks are not all at the same one
SERVER_SECONDS = 30.0
DELAY_SECONDS = 1.0
RENDEZVOUS_PORT = 29500
KEY, SERVERS, START = "MEMORY_KEY", "MEMORY_SERVERS", "MEMORY_START"

log = logging.getLogger("policy")
Address = tuple[str, int]
Kept = dict[int, dict[int, bytes]]  # rank → step → data


# ---- in the training


def save(step: int, data: bytes) -> None:
    """Keep this rank's state in the memory of its host and of another. Returns when the first has it."""
    host, port = json.loads(os.environ[SERVERS])[int(os.environ["GROUP_RANK"])]
    with Client((host, port), authkey=bytes.fromhex(os.environ[KEY])) as server:
        put(server, int(os.environ["RANK"]), step, data, copy=True)


def load() -> tuple[int, bytes] | None:
    """The step to begin at and this rank's state then; None where there is none."""
    start = json.loads(os.environ[START])
    if start is None:
        return None
    rank = os.environ["RANK"]
    host, port = start["where"][rank]
    with Client((host, port), authkey=bytes.fromhex(os.environ[KEY])) as server:
        server.send_bytes(json.dumps({"get": start["step"], "rank": int(rank)}).encode())
        return start["step"], server.recv_bytes()


def put(server: Connection, rank: int, step: int, data: bytes, copy: bool) -> None:
    """Hand a checkpoint to a server."""
    server.send_bytes(json.dumps({"put": step, "rank": rank, "copy": copy}).encode())
    server.send_bytes(data)
    server.recv_bytes()


# ---- the server on each host


class Server:
    """Checkpoints in memory. The script tells it where copies go and asks what it has."""

    def __init__(self) -> None:
        self.kept: Kept = {}
        self.lock = threading.Lock()
        self.next: Address | None = None
        self.copies: queues.Queue[tuple[int, int, bytes]] = queues.Queue(maxsize=64)

    def serve(self) -> None:
        """Until the script ends it."""
        queue = get_message_queue()
        hello = queue.recv()
        self.key = bytes.fromhex(hello["key"])
        listener = Listener((hello["address"], 0), backlog=128, authkey=self.key)
        for work in (lambda: self.accept(listener), self.pass_on):
            threading.Thread(target=work, daemon=True).start()
        queue.send({"port": listener.address[1]})
        while True:
            order = queue.recv()
            if "next" in order:
                self.next = tuple(order["next"]) if order["next"] else None
            with self.lock:
                queue.send({"kept": [[rank, step] for rank, steps in self.kept.items() for step in steps]})

    def accept(self, listener: Listener) -> None:
        """Take whoever knows the key."""
        while True:
            with contextlib.suppress(Exception):
                threading.Thread(target=self.answer, args=(listener.accept(),), daemon=True).start()

    def answer(self, peer: Connection) -> None:
        """One connection."""
        with peer, contextlib.suppress(EOFError, OSError):
            while True:
                asked = json.loads(peer.recv_bytes())
                rank = asked["rank"]
                if "get" in asked:
                    with self.lock:
                        data = self.kept[rank][asked["get"]]
                    peer.send_bytes(data)
                    continue
                data = peer.recv_bytes()
                with self.lock:
                    steps = self.kept.setdefault(rank, {})
                    steps[asked["put"]] = data
                    for old in sorted(steps)[:-KEEP_STEPS]:
                        del steps[old]
                if asked["copy"]:
                    self.copies.put((rank, asked["put"], data))  # waits where copies are slower than checkpoints
                peer.send_bytes(b"kept")

    def pass_on(self) -> None:
        """Copies to the next host. One that cannot be passed on is missing there until the next checkpoint, no more."""
        while True:
            rank, step, data = self.copies.get()
            if self.next is not None:
                with contextlib.suppress(Exception), Client(self.next, authkey=self.key) as server:
                    put(server, rank, step, data, copy=False)


# ---- in the script


class Memory:
    """The servers: one for each host, started where one is missing."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.key = ctx, secrets.token_hex(32)
        self.servers: dict[Host, Process] = {}
        self.addresses: dict[Host, Address] = {}

    def tend(self, hosts: list[Host]) -> None:
        """Start what is missing, in a ring. Raises HostLost, TimeoutError where a host cannot have one."""
        command = [sys.executable, os.path.abspath(__file__), "--serve"]
        begun: dict[Host, Process] = {}
        for host in hosts:
            host.hostname().result()
            if host not in self.servers or self.servers[host].returncode().done():
                [begun[host]] = self.ctx.create_process_group([host], command, name=f"memory{host.number}")
                address = host.facts.address if host.facts else ""
                begun[host].send({"key": self.key, "address": address})
        for host, process in begun.items():
            port = process.recv(lambda message: "port" in message).result(SERVER_SECONDS)["port"]
            self.addresses[host] = (host.facts.address if host.facts else "", port)
            self.servers[host] = process  # at once: the next host may be lost
        self.servers = {host: self.servers[host] for host in hosts}

    def ask(self, hosts: list[Host]) -> dict[Host, list[list[int]]]:
        """Tell each where copies go; what each keeps, of those that answer."""
        answers = {}
        for index, host in enumerate(hosts):
            follower = hosts[(index + 1) % len(hosts)]
            answers[self.servers[host].recv(lambda message: "kept" in message)] = host
            self.servers[host].send({"next": self.addresses[follower] if follower is not host else None})
        done = wait(answers, timeout=SERVER_SECONDS).done
        return {answers[future]: future.result()["kept"] for future in done if future.exception() is None}

    def make_env(self, hosts: list[Host], world_size: int) -> dict[str, str]:
        """What `save` and `load` read."""
        kept = self.ask(hosts)
        start = choose_step(kept, world_size)
        found = None
        if start is not None:
            step, where = start
            found = {"step": step, "where": {rank: self.addresses[host] for rank, host in where.items()}}
        log.info(
            "the training begins %s", f"at step {start[0]}, from memory" if start else "without a checkpoint in memory"
        )
        return {KEY: self.key, SERVERS: json.dumps([self.addresses[host] for host in hosts]), START: json.dumps(found)}


def choose_step(kept: dict[Any, list[list[int]]], world_size: int) -> tuple[int, dict[int, Any]] | None:
    """The newest step that every rank has somewhere, and where."""
    places: dict[int, dict[int, Any]] = {}
    for host, entries in kept.items():
        for rank, step in entries:
            places.setdefault(step, {}).setdefault(rank, host)
    complete = [step for step, ranks in places.items() if set(ranks) >= set(range(world_size))]
    return (max(complete), places[max(complete)]) if complete else None


def find_rendezvous(hosts: list[Host]) -> dict[str, str]:
    """Where torch's ranks meet: on the first host, once it is there. Raises HostLost."""
    hosts[0].hostname().result()
    address = hosts[0].facts.address if hosts[0].facts is not None else "127.0.0.1"
    return {"MASTER_ADDR": address, "MASTER_PORT": str(RENDEZVOUS_PORT)}


def run_once(ctx: Context, memory: Memory, hosts: list[Host], options: argparse.Namespace) -> str | None:
    """Start every rank and wait. None when all ended with 0, else what went wrong first. The servers go on."""
    try:
        memory.tend(hosts)
        env = find_rendezvous(hosts) | memory.make_env(hosts, len(hosts) * options.per_host)
    except (HostLost, ProcessFailedToStart, TimeoutError) as error:
        return str(error)
    group: ProcessGroup = ctx.create_process_group(
        hosts, options.command, options.per_host, env=env, name="train{rank}"
    )
    try:
        for future in as_completed([process.returncode() for process in group]):
            try:
                code = future.result()
            except (HostLost, ProcessFailedToStart) as error:
                return str(error)
            if code != 0:
                return f"{future.whom} ended with {code}"
        return None
    finally:
        for ended in group.end(grace_seconds=10):
            ended.exception()
        group.forget()


def main() -> int:
    """Keep the command running until it succeeds, or has failed too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        if options.local:
            ctx.start_local_managers(options.hosts)
        memory = Memory(ctx)
        for restarts in range(options.max_restarts + 1):
            failure = run_once(ctx, memory, hosts, options)
            if failure is None:
                log.info("done after %d restarts", restarts)
                return 0
            log.warning("attempt %d: %s", restarts, failure)
            for index, host in enumerate(hosts):
                if host.connection_lost():  # the new one in its place, so that the others' ranks stay beside their data
                    [hosts[index]] = ctx.replace_hosts([host])
                    if options.local:
                        ctx.start_local_managers(1)
            time.sleep(DELAY_SECONDS)
    log.error("given up after %d restarts: %s", options.max_restarts, failure)
    return 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        Server().serve()
    else:
        sys.exit(main())
