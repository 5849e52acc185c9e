"""The guides' commands run as they stand, beside a real `holdfast up`; `blocks.py` says which cannot, and why."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.docs.blocks import BLOCKS, GUIDES, NOT_RUN, NOT_YET, read_blocks
from tests.system.up.up_rig import Rig
from tests.waits import run_patiently

pytestmark = pytest.mark.slow
SECONDS = 120
RUN_BY_THE_RIG = "holdfast up --app mytasks"
PAGES = sorted({b.page for b in BLOCKS if b.why_not is None} - set(NOT_YET))
TRAIN = """
import os, holdfast
os.makedirs("out", exist_ok=True); open("out/model.pt", "w").write("weights"); holdfast.beat(1, 1)
print("step 1 loss 0.25")
"""
FILES = {
    ".holdfastignore": "/token\n",
    "train.py": TRAIN, "prepare.py": "", "tell.py": "", "poll.py": "", "eval.py": "print(1)", "train_ddp.py": TRAIN,
    "fit.sh": "#!/bin/sh\n", "data.csv": "1\n", "config/a": "1\n", "plots/a": "", "repaired.pt": "1\n", "save.py":
    "import holdfast, sys; holdfast.checkpoint.save(b'1', step=1); sys.exit(1)",
    "job.log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
}  # fmt: skip
# Page → the command that makes the job that its blocks speak of.
BEFORE = {
    "checkpoints.md": ["holdfast run -- python save.py"],
    "classification.md": ["holdfast run -- false"],
    "code.md": ["holdfast run --workdir . --name JOB2 -- true", "holdfast run --workdir . -- true"],
    "logs.md": [
        "holdfast projects create vision",
        "holdfast run --name train-a --tasks 2 --shell 'echo \"RuntimeError: NCCL timeout: 1\" >&2; exit 1'",
    ],
    "outputs.md": [
        "holdfast submit --name train-7 --tasks 4 --shell 'mkdir -p out inputs; echo 1 > out/model.pt; "
        "echo 1 > out/a.png; echo 1 > /tmp/trace.json; sleep 100'",
        "until holdfast logs train-7 && holdfast exec train-7 -- ls out/a.png; do sleep 0.2; done",
    ],
    "preemption.md": ["holdfast submit --name night -- true", "holdfast submit --name urgent -- true"],
    "projects.md": ["holdfast projects create vision", "holdfast projects create speech", "holdfast run -- true"],
    "report.md": ["holdfast projects set vision"],
    "retries.md": ["holdfast projects set vision"],
    "functions.md": ["python -c 'from mytasks import double; print(double.submit(3).result(60))'"],
    "watching.md": [
        "holdfast submit --name train-a -- true", "holdfast submit --name train-b -- true", "holdfast run -- true",
    ],
    "when.md": ["holdfast submit --name train-b -- true"],
    "where-am-i.md": ["holdfast login URL --context lab --token-stdin < token"],
}  # fmt: skip
AFTER = {"hosts.md": ["holdfast hosts undrain box-7"], "outputs.md": ["holdfast cancel train-7"]}
SMALLER = [("0-999%50", "0-9%5"), ("--tasks 8", "--tasks 2"), ("https://holdfast.example", "URL"),
           ("holdfast jobs --mine --watch", "timeout 3 holdfast jobs --mine --watch")]  # fmt: skip
# What rightly ends otherwise than with 0, as the guide says or because the example is another's.
ENDS = {
    "holdfast run -- ./fetch.sh": {1},
    "holdfast run --max-retries 3 --retry-delay 2s --shell": {1},
    "holdfast run -- python save.py": {1},
    "holdfast run -- false": {1},
    "holdfast run --name train-a": {1},
    "holdfast grep -i": {0, 1},
    "holdfast doctor": {0, 1},
    "holdfast cancel": {0, 4},
    "timeout 3": {0, 124},
    "holdfast wait train-a train-b": {0, 1},
    "holdfast retry JOB": {0},
    "holdfast outputs @last --get results 'out/*.pt'": {3},
    "holdfast webhooks redeliver pager DELIVERY": {2, 3},
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, migrated_cluster: Path) -> Iterator[Rig]:
    """An `up` with a host of the guides' name, and the folder `work` below it with their files."""
    folder = tmp_path_factory.mktemp("guides")
    work = folder / "work"
    write_files(work)
    words = ("--port", "0", "--slots", "16", "--gpus", "16", "--name", "box-7")
    app = ("--app", "mytasks", "--app-path", str(work))
    made = Rig(folder, *words, *app, cluster=migrated_cluster)
    try:
        yield made.start()
        assert made.stop() == 0
    finally:
        made.close()


def write_files(work: Path) -> None:
    """Write what the commands read: files that the guides show, by the name in their first lines."""
    shown = {}
    for block in read_blocks():
        found = re.match(r"(?:#!.*\n)?# (\w+\.(?:py|toml|sh))\b", block.text)
        if found:
            shown.setdefault(found[1], block.text)
    for name, text in (FILES | shown).items():
        file = work / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)


def type_command(rig: Rig, command: str) -> tuple[int, str]:
    """Type a command in the folder of the files; return its exit status and what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    own = {"HOLDFAST_URL": rig.url(), "HOLDFAST_TOKEN": (rig.data / "token").read_text().strip()}
    env = {**keep, "PATH": path, "XDG_CONFIG_HOME": str(rig.folder / "config")}
    done = run_patiently(
        ["sh", "-c", command], cwd=rig.folder / "work", capture_output=True, seconds=SECONDS,
        env=env | (own if "$HOLDFAST_URL" in command else {}), input="",
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_guide_run(rig: Rig, page: str) -> None:
    (rig.folder / "work" / "token").write_text((rig.data / "token").read_text())
    made: list[str] = []
    for command in BEFORE.get(page, []):
        type_command(rig, command.replace("JOB2", "job2").replace("URL", rig.url()))
    jobs = (
        [job for job in rig.client().jobs() if not job.spec.executor][:2] if page in BEFORE else []
    )
    ids = {"JOB2": jobs[-1].id, "JOB": jobs[0].id} if jobs else {}
    wrong = []
    for block in (b for b in BLOCKS if b.page == page and b.why_not is None):
        for command in block.commands:
            if command == RUN_BY_THE_RIG:
                continue
            typed = command
            for long, short in SMALLER:
                typed = typed.replace(long, short)
            typed = re.sub(r"\b(?:1m|06ch)\w{16,18}\b", "JOB", typed).replace("WEBHOOK", "pager")
            expected = next((ends for begin, ends in ENDS.items() if typed.startswith(begin)), {0})
            if page == "outputs.md" and typed.startswith("holdfast cp"):
                typed = typed.replace("@last", "train-7")
            if "SET" in typed:
                typed = typed.replace("SET", rig.client().call_sets()[0].id).replace(".17", ".0")
            for name, job in ids.items():
                typed = re.sub(rf"\b{name}\b", job, typed)
            status, printed = type_command(
                rig, typed.replace("URL", rig.url()) if "$" not in typed else typed
            )
            made.append(typed)
            if status not in expected:
                wrong.append(f"{status}: {typed}\n{printed}")
                print(wrong[-1])
            if command.startswith("holdfast retry JOB"):
                type_command(rig, f"holdfast wait {ids['JOB']}")
    for command in AFTER.get(page, []):
        type_command(rig, command)
    assert wrong == [], "\n".join(wrong)
    assert made


def test_what_is_not_run_is_there_and_counted() -> None:
    blocks = [b for b in BLOCKS if b.why_not is not None]
    marks = sum(map(len, NOT_RUN.values()))
    assert len(blocks) == marks == 32, "a mark that fits no block, or two, or another count"
    assert len(NOT_YET) <= 13
    assert set(NOT_YET) <= {b.page for b in BLOCKS if b.why_not is None}


def test_every_other_block_can_be_read() -> None:
    """Python compiles and TOML parses, where a block is whole."""
    for block in read_blocks():
        if block.language == "python" and "..." not in block.text:
            compile(re.sub(r"^    (?=lost = \[)", "", block.text, flags=re.M).replace("    hosts = [host for", "hosts = [host for"),
                    block.page, "exec")  # fmt: skip
        if block.language == "toml":
            tomllib.loads(block.text)
    assert len(list(GUIDES.glob("*.md"))) > 40
