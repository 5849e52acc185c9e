"""The blocks of commands of the guides, and why some of them cannot be run by a test."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.S | re.M)
SHELL = ("", "sh", "bash", "console")
COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(?:holdfast (?=[a-z-])|make |python3? |pip |ssh |rsync |sbatch |srun |curl |until "
    r"|systemd-run |revive_host\.py |create|export |laptop\$|\[ |rm |trap )"
)
# Page → the beginning of a block's first command → why no test runs the block as it stands.
NOT_RUN: dict[str, dict[str, str]] = {
    "checkpoints.md": {'[ -n "$HOLDFAST_CHECKPOINT"': "lines of a job's script: tests/system/checkpoints"},
    "code.md": {
        "holdfast run --git https://github.com": "another host: tests/system/code has a repository here",
        "holdfast run --workdir . --setup": "an index of packages: tests/system/code",
    },
    "containers.md": {"holdfast run --image": "a registry of images: tests/system/containers"},
    "dashboard.md": {
        "laptop$": "another host",
        "holdfast server --host 0.0.0.0": "a name and its certificate",
    },
    "database.md": {"createuser": "a PostgreSQL server of its own: tests/store/test_stock_server.py"},
    "dead-hosts.md": {"revive_host.py": "a service manager, and a machine to restart: tests/system/watchdogs"},
    "gangs.md": {"holdfast run --tasks 2 --gpus 8": "GPUs and torchrun: make ddp"},
    "hosts-as-services.md": {"systemd-run": "systemd"},
    "hosts.md": {
        "holdfast agent --join": "another host: tests/system/agent",
        "holdfast hosts drain box-7 --deadline 30m": "another host, which is restarted",
    },
    "inside.md": {
        "holdfast exec @last": "a GPU and terminals: tests/system/sessions",
        "holdfast notebook": "Jupyter and a registry of images: tests/system/sessions",
        "holdfast ssh-config": "the user's own ~/.ssh: tests/system/sessions/test_ssh.py",
    },
    "notify.md": {"holdfast notify set ops": "a chat service: tests/system/run/test_webhooks.py"},
    "outputs.md": {
        "holdfast run --cache hf": "a registry of images",
        "holdfast agent --join": "another host, and a registry of images",
    },
    "slurm.md": {
        "sbatch --nodes=9": "Slurm: make slurm",
        "srun --no-kill": "Slurm: make slurm",
        "python policy.py": "Slurm: make slurm",
    },
    "supervisor.md": {
        "srun": "Slurm: make slurm",
        "python train_forever.py": "64 hosts with GPUs: tests/system/supervisor/policies",
        "holdfast supervise -f policy.py": "16 hosts with GPUs: tests/system/up/test_supervise_up.py",
        "holdfast supervise -f restart": "two hosts: tests/system/up/test_supervise_up.py",
    },
    "tour.md": {
        "pip install": "a new environment; the release's own tests do",
        "export HOLDFAST_DSN": "a PostgreSQL server of its own, and a certificate",
        "holdfast login https://box-0": "another host",
        "holdfast agent --join": "another host",
    },
    "webhooks.md": {"holdfast webhooks test pager": "a receiver with a name: tests/system/run/test_webhooks.py"},
    "where-am-i.md": {"holdfast login https://holdfast.example --context": "a person who types a token"},
    "workflows.md": {"holdfast workflow run nightly.toml": "a registry of images: tests/system/workflows"},
}  # fmt: skip

# Guides whose commands are in the test's reach, and were not yet seen to run; the list only shrinks.
NOT_YET = (
    "code.md", "functions.md", "logs.md", "outputs.md", "pools.md", "report.md", "retries.md", "schedules.md",
    "tour.md", "watching.md", "webhooks.md", "when.md", "where-am-i.md",
)  # fmt: skip


class Block(NamedTuple):
    """A fenced block: its page, its language, its text, and its commands."""

    page: str
    language: str
    text: str
    commands: tuple[str, ...]

    @property
    def why_not(self) -> str | None:
        """Why no test runs it; None where one does."""
        for begin, reason in NOT_RUN.get(self.page, {}).items():
            if self.commands[0].startswith(begin):
                return reason
        return None


def read_blocks() -> Iterator[Block]:
    """Yield every block of the guides."""
    for page in sorted(GUIDES.glob("*.md")):
        for _, language, text in FENCE.findall(page.read_text()):
            yield Block(
                page.name, language, textwrap.dedent(text), tuple(find_commands(language, text))
            )


def find_commands(language: str, text: str) -> Iterator[str]:
    """Yield the commands of a block, without prompts, comments and what they printed."""
    if language not in SHELL:
        return
    lines = re.sub(r"\s*\\\n\s*", " ", textwrap.dedent(text)).splitlines()
    if lines[0].startswith("#!"):
        return  # a script's own text
    prompted = any(line.startswith("$ ") for line in lines)
    for line in lines:
        if prompted and not line.startswith("$ "):
            continue
        words = re.sub(r"\s{3,}\S.*$|\s+# .*$", "", line.removeprefix("$ ")).strip()
        if COMMAND.match(words):
            yield re.sub(r"\s{2,}", " ", words)


BLOCKS = [block for block in read_blocks() if block.commands]
