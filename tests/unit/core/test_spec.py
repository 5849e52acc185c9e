"""Job specs: what is accepted, and that what is not is refused with the field that is wrong."""

from __future__ import annotations

import subprocess
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.spec import MAX_ARGV_BYTES, MAX_ENV_BYTES, JobSpec, check_spec
from holdfast.errors import ValidationError


def read(**fields: Any) -> JobSpec:
    return msgspec.convert({"argv": ["true"], **fields}, JobSpec)


def test_the_least_a_job_needs() -> None:
    assert check_spec(read()).argv == ("true",)
    assert check_spec(JobSpec(shell="echo hi")).shell == "echo hi"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (JobSpec(), "argv"),
        (JobSpec(argv=("a",), shell="b"), "argv"),
        (JobSpec(argv=("",)), "argv"),
        (JobSpec(argv=("a",), name="06ch2v8wq1m4kz7d9x3t"), "name"),
        (JobSpec(argv=("a",), name="@last"), "name"),
        (JobSpec(shell="  \n"), "shell"),
        (JobSpec(shell=""), "shell"),
        (JobSpec(argv=("a\x00b",)), "argv"),
        (JobSpec(argv=("a", "\ud800")), "argv"),
        (JobSpec(shell="a\x00"), "shell"),
        (JobSpec(argv=("a",), env={"X": "\x00"}), "env.X"),
        (JobSpec(argv=("a",), secrets={"X": "\udfff"}), "secrets.X"),
        (JobSpec(argv=("a", *["x" * 100_000] * 16)), "argv"),
        (JobSpec(argv=("a",), env={"A": "x" * 70_000}, secrets={"B": "y" * 70_000}), "env"),
        (JobSpec(argv=("a",), env={"A": "1"}, secrets={"A": "2"}), "secrets"),
        (JobSpec(argv=("a",), env={"HOLDFAST_TASK": "x"}), "env"),
        (JobSpec(argv=("a",), secrets={"HOLDFAST_X": "x"}), "env"),
        (JobSpec(argv=("a",), env={"RANK": "9"}), "env.RANK"),
        (JobSpec(argv=("a",), secrets={"MASTER_PORT": "1"}), "secrets.MASTER_PORT"),
        (JobSpec(argv=("a",), env={"CUDA_VISIBLE_DEVICES": "0"}), "env.CUDA_VISIBLE_DEVICES"),
        (
            JobSpec(argv=("a",), gpus=1, env={"CUDA_VISIBLE_DEVICES": ""}),
            "env.CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_what_types_cannot_say_is_checked(spec: JobSpec, field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        check_spec(spec)
    assert raised.value.field == field


def test_a_variable_that_holdfast_sets_is_refused_unless_it_says_what_is_so() -> None:
    with pytest.raises(
        ValidationError, match=r"RANK is set by Holdfast .* ask for ranks with `tasks`"
    ):
        check_spec(JobSpec(argv=("a",), env={"RANK": "0"}))
    check_spec(
        JobSpec(argv=("a",), env={"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"argv": "true"},
        {"priority": 101},
        {"priority": -1},
        {"priority": 1.5},
        {"tasks": 0},
        {"gpus": -1},
        {"queue": ""},
        {"queue": "../x y"},
        {"queue": "a\n"},
        {"project": "x\n"},
        {"name": "a\nb"},
        {"name": "a\n"},
        {"cwd": "relative"},
        {"cwd": "/a\x00"},
        {"env": {"1X": "y"}},
        {"env": {"X=Y": "y"}},
        {"env": {"X\n": "y"}},
        {"time_limit_seconds": 0},
        {"time_limit_seconds": -1},
        {"time_limit_seconds": "never"},
        {"time_limit_seconds": float("nan")},
        {"lease_ttl_seconds": 1},
        {"watchdog_cap": -1},
        {"idempotency_key": ""},
        {"idempotency_key": "a b"},
        {"idempotency_key": "a\n"},
        {"nonsense": 1},
        {"labels": {"a b": "c"}},
        {"start_at": -1},
    ],
)
def test_types_refuse_the_rest(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(**fields)


def test_limits_are_exact() -> None:
    word = "x" * (MAX_ARGV_BYTES // 16 - 9)
    check_spec(JobSpec(argv=(word,) * 16))
    with pytest.raises(ValidationError, match=r"17 words .* put the words in a file"):
        check_spec(JobSpec(argv=(*(word,) * 16, "y")))
    most = ["/bin/true", *["y"] * (MAX_ARGV_BYTES // 10 - 2)]
    check_spec(read(argv=most))
    env = {"A": "x" * (MAX_ENV_BYTES - 3)}
    assert subprocess.run(most, env=env).returncode == 0, "what is accepted can be started"
    check_spec(JobSpec(argv=("a",), env={"A": "x" * (MAX_ENV_BYTES - 3)}))
    with pytest.raises(ValidationError):
        check_spec(JobSpec(argv=("a",), env={"A": "x" * (MAX_ENV_BYTES - 2)}))


def test_off_is_a_word_of_its_own() -> None:
    assert read(time_limit_seconds="off").time_limit_seconds == "off"
    assert read().time_limit_seconds is None


@pytest.mark.parametrize(
    ("fields", "slots"),
    [({}, 1), ({"gpus": 1}, 0), ({"gpus": 1, "cpus": 3}, 3), ({"cpus": 0}, 0), ({"cpus": 4}, 4)],
)
def test_cpu_slots(fields: dict[str, int], slots: int) -> None:
    assert read(**fields).cpu_slots == slots


@pytest.mark.parametrize(
    ("spec", "title"),
    [
        (JobSpec(argv=("/usr/bin/python3", "runs/x.py", "--lr", "3")), "x.py"),
        (JobSpec(argv=("python3.12", "-u", "-X", "dev", "x.py")), "x.py"),
        (JobSpec(argv=("python", "-m", "films.train", "--lr", "3")), "films.train"),
        (JobSpec(argv=("/usr/bin/python3", "-c", "import os")), "python3"),
        (JobSpec(argv=("python",)), "python"),
        (JobSpec(argv=("python", "-")), "python"),
        (JobSpec(argv=("bash", "-lc", "cd /x && python y.py")), "bash"),
        (JobSpec(argv=("sh", "./fit.sh", "7")), "fit.sh"),
        (JobSpec(argv=("torchrun", "x.py")), "torchrun"),
        (JobSpec(argv=("x",), name="mine"), "mine"),
        (JobSpec(shell="echo one\necho two"), "echo one echo two"),
        (JobSpec(shell="y" * 200), "y" * 60),
        (JobSpec(argv=("dir/",)), "?"),
        (JobSpec(), "?"),
    ],
)
def test_titles(spec: JobSpec, title: str) -> None:
    assert spec.title == title


def test_secrets_keep_their_names_and_lose_their_values() -> None:
    spec = JobSpec(argv=("x",), env={"A": "1"}, secrets={"TOKEN": "hunter2", "KEY": "k"})
    kept = spec.without_secrets()
    assert kept.secrets == {"TOKEN": "", "KEY": ""}
    assert kept.env == {"A": "1"}
    assert b"hunter2" not in msgspec.json.encode(kept)
    assert spec.secrets["TOKEN"] == "hunter2"


@given(
    st.lists(st.text(max_size=20), max_size=4),
    st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), st.text(max_size=20), max_size=3),
)
def test_what_passes_survives_the_wire(argv: list[str], env: dict[str, str]) -> None:
    try:
        spec = check_spec(JobSpec(argv=tuple(argv), env=env))
    except ValidationError:
        return
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize(
    ("given", "advice"), [(1, "1G?"), (4, "4G?"), (4096, "4096M?"), ((1 << 20) - 1, "1048575M?")]
)
def test_a_memory_limit_in_which_nothing_starts_is_refused_with_its_likely_unit(
    given: int, advice: str
) -> None:
    with pytest.raises(ValidationError, match="no process can start") as refused:
        check_spec(JobSpec(argv=("x",), memory_bytes=given))
    assert refused.value.field == "memory_bytes"
    assert refused.value.message.endswith(f"did you mean {advice}")
    check_spec(JobSpec(argv=("x",), memory_bytes=1 << 20))
    check_spec(JobSpec(argv=("x",)))
