"""Host managers started by the script itself on its own machine, and ended with it."""

import contextlib
import resource
import signal
import subprocess
import time

# The script is there already, so a manager that does not meet it within 120 s gives up.
_PATIENCE = ("--wait", "120")


class LocalManagers:
    """Managers as children of this process, with the descriptor limit that it began with."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []
        self._count = 0
        self._descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    def start(self, command: list[str], n: int) -> list[int]:
        """Start `n` managers, each under a name of its own. Returns their pids."""
        started = []
        for _ in range(n):
            started.append(self._start([*command, *_PATIENCE, "--name", f"local-{self._count}"]))
            self._count += 1
        return started

    def _start(self, command: list[str]) -> int:
        # A session of its own, because the terminal's Ctrl-C is for the script, which then ends
        # them in order.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self.running.append(process)
        with contextlib.suppress(OSError):  # the process is gone already
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self._descriptor_limit)
        return process.pid

    def end(self, timeout_seconds: float) -> None:
        """Wait for all managers, then send TERM, then KILL."""
        deadline = time.monotonic() + timeout_seconds
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            for process in self.running:
                if number is not None and process.poll() is None:
                    process.send_signal(number)
            for process in self.running:
                try:
                    process.wait(max(0.05, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
            if all(process.poll() is not None for process in self.running):
                break
            deadline = time.monotonic() + 2.0
        self.running = [process for process in self.running if process.poll() is None]
