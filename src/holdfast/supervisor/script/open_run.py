"""One run while its script has it open: how it opens, and how it ends or is left.

A run ends by `shutdown`; a script that calls `detach` leaves it to the next script, and a forked
child leaves it to its parent (`disown`).
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable, ValidationError
from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.line.bus import Bus, FleetLine
from holdfast.supervisor.line.keys import make_keys, write_manager_key
from holdfast.supervisor.line.machine import find_address
from holdfast.supervisor.line.session_fleet import Rules
from holdfast.supervisor.rosters.events import EventLog
from holdfast.supervisor.rosters.host_roster import EXIT_RETURNED, HostRoster
from holdfast.supervisor.rosters.process_table import ProcessTable
from holdfast.supervisor.rosters.state import REATTACH_SECONDS, SavedRun, StateFolder
from holdfast.supervisor.run_config import (
    ANYWHERE,
    RUN_VARIABLE,
    GivenRun,
    parse_listen,
    read_shared_words,
)
from holdfast.supervisor.script.forked import close_ports, watch_forks
from holdfast.supervisor.script.job_counts import JobCounts
from holdfast.supervisor.script.local import LocalManagers
from holdfast.supervisor.script.status import StatusLine

if TYPE_CHECKING:
    from holdfast.supervisor.script.metrics_server import MetricsServer

logger = logging.getLogger("holdfast.supervisor")

# Managers have so long to read that their goodbyes arrived: a frame just before a connection closes
# may be lost.
_HEARD_SECONDS = 0.25
_GOODBYE_SECONDS = 3.0
_STOP_SECONDS = 5.0
_NUMBERS_PER_EPOCH = 1 << 24
_CLOSED = "the context was shut down; make another one"
_FORKED = "the context is the parent's; a forked child has no part in it"


class OpenRun:
    """The parts of a run and their order: state folder, keys, rosters, bus, status, metrics."""

    def __init__(
        self,
        given: GivenRun | None,
        rules: Rules,
        *,
        bind: str,
        port: int,
        advertise: str | None,
        encrypt: bool,
        state_dir: str | os.PathLike[str] | None,
        key_file: str | os.PathLike[str] | None,
        event_file: str | os.PathLike[str] | None,
        log_interval: float | None,
    ) -> None:
        """Open the run. Raises as `Context` does."""
        self.local = LocalManagers()
        self.metrics: MetricsServer | None = None
        self.events = EventLog(Path(event_file) if event_file is not None else None)
        self._given = given
        self._closed = False
        self._folder: StateFolder | None = None
        self._scratch: Path | None = None
        try:
            self._folder = StateFolder(Path(state_dir)) if state_dir is not None else None
            if not key_file and self._folder is None and given is None:
                self._scratch = Path(tempfile.mkdtemp(prefix="holdfast-run-"))
            self.state = self._load_state(encrypt) or self._begin_state(encrypt, port)
            self.state.epoch += 1
            self._make_rosters(rules)
            address = "0.0.0.0" if bind == "*" else bind
            keys, fleet = self.state.keys, self.roster.fleet
            port = port or self.state.port
            self.bus = Bus(address, port, keys, fleet, self.roster, self._scratch)
            self.crew.bus = self.bus
            self.state.port = self.bus.port
            self.advertise = advertise or (find_address("") if bind in ANYWHERE else bind)
            self.key_file = self._write_key(key_file)
            if self._folder is not None:
                self._keep_state(self._folder)
            self.status_line = StatusLine(self.roster, self.crew, self.bus, log_interval)
            self.bus.start()
            self.counts = JobCounts(os.environ, self.status_line.read_counts)
            self.status_line.start()
            self.counts.start()
        except BaseException:
            self._clean_up()
            raise
        atexit.register(self.leave)
        watch_forks(self)

    def _load_state(self, encrypt: bool) -> SavedRun | None:
        """Load an earlier script's run, if its hosts may still be there."""
        earlier = self._folder.load() if self._folder is not None else None
        if earlier is not None and self._given is not None and earlier.run != self._given.keys.run:
            logger.warning(
                "the run in the state folder ended with an earlier attempt of this job; another "
                "begins"
            )
            return None
        if earlier is not None and encrypt and not earlier.keys.server_secret:
            raise ValidationError(
                "the run in the state folder speaks plain TCP, which encrypt=True forbids: go on "
                "with it by encrypt=False, or begin another one in another folder",
                field="encrypt",
            )
        return earlier

    def _begin_state(self, encrypt: bool, port: int) -> SavedRun:
        keys = self._given.keys if self._given else make_keys(secrets.token_hex(16), encrypt)
        return SavedRun(run=keys.run, keys=keys, port=port)

    def _make_rosters(self, rules: Rules) -> None:
        fleet = FleetLine(self.state.run, self.state.epoch, rules)
        first = self.state.epoch * _NUMBERS_PER_EPOCH
        self.crew = ProcessTable(fleet, self.events, first)
        self.roster = HostRoster(fleet, self.crew, self.events)
        if self._given is not None:
            self.roster.bars_machines = False
            self.crew.shared_words = read_shared_words(os.environ)
            self.roster.term_grace_seconds = self._given.term_grace_seconds
        # Without a lock, which a forked child might find held: `next` on these is one step.
        self.host_numbers = itertools.count(self.state.next_host)
        self.group_numbers = itertools.count(first + 1)

    def name_group(self, number: int) -> str:
        """Return a name for a group that the script does not name: no other group of the run has
        it, so two never share a log file."""
        epoch, count = divmod(number, _NUMBERS_PER_EPOCH)
        return f"g{count}p{{rank}}" if epoch == 1 else f"s{epoch}g{count}p{{rank}}"

    def _write_key(self, key_file: str | os.PathLike[str] | None) -> Path:
        home = self._folder.path if self._folder is not None else self._scratch
        home = home or Path(os.environ.get(RUN_VARIABLE, "")).parent
        path = Path(key_file or home / "manager-key").absolute()
        write_manager_key(path, self.state.keys)
        return path

    def _keep_state(self, folder: StateFolder) -> None:
        self.state.revive(self.roster, self.crew)
        self.roster.expect_until = time.monotonic() + REATTACH_SECONDS
        folder.keep(self.state, self.roster, self.crew)
        self.roster.changed = self.crew.changed = folder.mark
        self.crew.save = folder.save
        folder.save()

    def serve_metrics(self, address: str, port: int | None) -> None:
        """Serve metrics where the script, or else `holdfast supervise`, asked for it. A port in use
        is an error only if the script named it."""
        asked = port is not None
        if not asked and self._given is not None and self._given.metrics:
            address, port = parse_listen(self._given.metrics)
        if port is None:
            return
        from holdfast.supervisor.script.metrics_server import MetricsServer

        try:
            self.metrics = MetricsServer(address, port, self.status_line.render_metrics)
        except Unavailable as error:
            if asked:
                self.leave()  # a run that another script began goes on
                raise
            logger.warning("%s", error)
            return
        logger.info("metrics are at http://%s:%d/metrics", address, self.metrics.port)

    @property
    def may_come_back(self) -> bool:
        """Return True where managers keep their processes for a script that is started again."""
        return self.roster.fleet.rules.orphan_grace_seconds > 0

    # ---- the end

    def shutdown(self, timeout: float | None) -> bool:
        """End all processes and managers. Returns True if all said goodbye in time, or earlier."""
        if self._closed:
            return True
        kill_grace_seconds = self.roster.fleet.rules.kill_grace_seconds
        limit = kill_grace_seconds + _GOODBYE_SECONDS if timeout is None else timeout
        self._close_doors()
        load = self.bus.load
        leave_when = load.counted.disconnects + len(self.roster.fleet.peers)
        self.bus.call(self.roster.end_all, EXIT_RETURNED, "the script is done")
        deadline = time.monotonic() + limit
        done: Future[None] = Future("the goodbyes")
        self.bus.call(self.roster.when_closed, done)
        with contextlib.suppress(TimeoutError):
            done.result(limit)
        complete = done.done()
        leave_at = time.monotonic() + _HEARD_SECONDS
        while complete and load.counted.disconnects < leave_when and time.monotonic() < leave_at:
            time.sleep(0.002)
        self.local.end(max(0.0, deadline - time.monotonic()) + 1.0)
        self.bus.stop(_STOP_SECONDS)
        self.roster.close()
        if self._folder is not None:
            self._folder.remove()
        self._clean_up()
        return complete

    def detach(self) -> None:
        """Leave the run without ending anything, so that the next script takes it over."""
        if self._closed:
            return
        self._close_doors()
        self.bus.stop(_STOP_SECONDS)
        self.roster.close()
        try:
            if self._folder is not None:
                self._folder.save()
        finally:
            self._clean_up()

    def leave(self) -> None:
        """Detach where another script may continue the run, else end it."""
        if self.may_come_back:
            self.detach()
        else:
            self.shutdown(None)

    def disown(self) -> None:
        """Leave the run to the parent, in a forked child (FORK-1)."""
        if self._closed:
            return
        self._closed = True
        self.crew.closed = _FORKED
        atexit.unregister(self.leave)
        if self._folder is not None:
            self._folder.disown()
        self.bus.disown()
        if self.metrics is not None:
            close_ports([self.metrics.port])

    def _close_doors(self) -> None:
        self._closed = True
        atexit.unregister(self.leave)
        self.crew.closed = _CLOSED
        self.status_line.stop()
        self.counts.stop()
        if self.metrics is not None:
            self.metrics.close()

    def _clean_up(self) -> None:
        bus = getattr(self, "bus", None)
        if bus is not None:
            bus.close()
        self.events.close()
        if self._folder is not None:
            self._folder.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
