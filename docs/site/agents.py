"""What coding agents read: `llms.txt`, and a skill file."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.cli.commands import COMMANDS
from holdfast.core.causes import CHARGED_TO, Cause

SUMMARY = (
    "Holdfast keeps GPU work running until it is finished: it starts commands on hosts, notices hangs from outside "
    "of the process, and runs failed attempts again by their cause."
)


def read_title(page: Path) -> tuple[str, str]:
    """Return the title of a page and its first sentence."""
    text = page.read_text()
    title = re.search(r"^# (.+)$", text, re.M)
    first = re.search(r"^(?![#|`!<>-])\S.*(?:\n\S.*)*", text, re.M)
    sentence = re.split(r"(?<=[.!?:]) ", " ".join(first[0].split()))[0] if first else ""
    return title[1] if title else page.stem, re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)


def render_llms(sections: dict[str, list[str]], folder: Path) -> str:
    """Return `llms.txt`: every page with its first sentence. Each page is there as Markdown, too."""
    words = ["# Holdfast", f"> {SUMMARY}"]
    for section, pages in sections.items():
        rows = []
        for page in pages:
            title, sentence = read_title(folder / page)
            rows.append(f"- [{title}]({page}): {sentence}")
        words += [f"## {section}", "\n".join(rows)]
    return "\n\n".join(words) + "\n"


def render_skill() -> str:
    """Return the skill file: when an agent uses Holdfast, how, and what each cause asks for."""
    commands = "\n".join(f"- `holdfast {name}`: {about}" for name, (_, about) in COMMANDS.items())
    causes = "\n".join(f"- `{cause}`: charged to {CHARGED_TO[cause]}" for cause in Cause)
    return f"""---
name: holdfast
description: >-
  Run long or GPU work with Holdfast, find out why a job waits, hangs or failed, and bring back what it made. Use it
  when a folder has holdfast-data, HOLDFAST_URL is set, or the user speaks of holdfast jobs.
---

# Holdfast

{SUMMARY}

1. `holdfast status` says which server commands go to. Without one: `holdfast up` (it stays in the foreground).
2. `holdfast submit --gpus 1 -- python train.py` prints an id; `holdfast run -- …` follows it; `@last` is the last job.
3. Every listing takes `--json`. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused by its state, 5 not
   authorised, 6 unreachable, 7 over quota.
4. A job waits or failed: `holdfast why JOB` first; it ends with the command that helps. Then `holdfast attempts JOB`,
   `holdfast logs --errors JOB`, `holdfast show JOB --forensics` (the stacks of a hang).
5. Do not resubmit a job that is `waiting` or `queued`: Holdfast runs it again by itself. `program_error` and
   `validation_error` need a change of the program first.
6. Never run `hosts terminate`, `cancel`, `pools delete` or `token revoke` unless the user asked for that very thing.
7. In training code: `holdfast.beat(step, total)` after each step; `holdfast.checkpoint.load()` and
   `holdfast.on_drain(lambda: holdfast.checkpoint.save(state))` keep its state.

## Commands

{commands}

## Causes

{causes}
"""
