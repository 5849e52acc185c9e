"""Run the agent, as its guardian starts it: `python -m holdfast.agent CONFIG`."""

import asyncio
import gc
import logging
import os
import sys

from holdfast.agent.config import EXIT_BAD_CONFIG, AgentConfig, read_config
from holdfast.agent.guardian.guardian_folder import sweep_after_guardian
from holdfast.agent.guardian_env import read_ties, wait_for_guardians_end
from holdfast.agent.journal import open_journal
from holdfast.errors import ValidationError
from holdfast.lean import collect_nothing

log = logging.getLogger("holdfast.agent")


def run_agent(config: AgentConfig) -> int:
    """Run the agent of this process's guardian; return the exit status. Raises ValidationError."""
    with collect_nothing():
        from holdfast.agent.agent import Agent

    ties = read_ties(os.environ)
    open_journal(config.host_name, log_format=config.log_format)

    async def serve() -> tuple[int, bool]:
        agent = Agent(config, ties)
        gc.freeze()  # objects of the start live to the end; scanning them delays launches
        status = await agent.run()
        return status, agent.line_lost

    # `asyncio.run` would wait for the loop's threads, and a name look-up or a stuck read may
    # block one for long.
    status, line_lost = asyncio.new_event_loop().run_until_complete(serve())
    if line_lost and not wait_for_guardians_end(ties):
        log.error(
            "the line to the guardian ended, but the guardian lives; its tasks go on, and its "
            "next agent with them"
        )
    elif line_lost:
        log.error("the guardian is gone; ending what its tasks left behind")
        survivors = sweep_after_guardian(os.environ)
        if survivors:
            log.error(f"processes {survivors} survive SIGKILL")
    return status


def main(argv: list[str]) -> int:
    """Run `python -m holdfast.agent CONFIG`; return its exit status."""
    try:
        if len(argv) != 1:
            raise ValidationError("give the agent's config file; `holdfast agent` does")
        return run_agent(read_config(argv[0]))
    except ValidationError as error:
        print(f"holdfast agent: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(exit_status)  # waits for no thread that hangs in the kernel
