"""The failures of hosts and processes that a policy script sees."""

from holdfast.errors import Conflict, HoldfastError, Unavailable


class HostLost(Unavailable):
    """The host is gone, was given back, or was given up. `hostname` and `reason` name the host and
    the cause."""

    code = "host_lost"

    def __init__(self, hostname: str, reason: str) -> None:
        super().__init__(f"host {hostname} is lost: {reason}")
        self.hostname = hostname
        self.reason = reason


class ProcessFailedToStart(HoldfastError):
    """The program never ran. `reason` is the kernel's error in words, such as "permission
    denied"."""

    code = "process_failed_to_start"

    def __init__(self, name: str, hostname: str, reason: str) -> None:
        super().__init__(f"process {name} on host {hostname} did not start: {reason}")
        self.name = name
        self.hostname = hostname
        self.reason = reason


class ProcessEnded(Conflict):
    """The process ended before the awaited message came."""

    code = "process_ended"


class ContextClosed(Conflict):
    """The context was shut down and takes no more calls."""

    code = "context_closed"
