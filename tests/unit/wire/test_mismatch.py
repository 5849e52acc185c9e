"""What is wrong with a value, in words, for each kind of sentence msgspec has; found by making it
say them."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.agent.config import AgentConfig
from holdfast.core.spec import JobSpec
from holdfast.wire.api import BatchRequest
from holdfast.wire.mismatch import locate, refuse, say_mismatch, split_path


def said(fields: object) -> str:
    """The sentence on `fields` as a job."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, JobSpec)
    sentence, path = split_path(str(caught.value))
    return f"{path}: {say_mismatch(sentence, JobSpec, path)}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"priority": 900}, "priority: must be at most 100"),
        ({"priority": "high"}, "priority: must be a whole number, not text"),
        ({"cpus": 1.5}, "cpus: must be a whole number, not a number"),
        ({"time_limit_seconds": 0}, "time_limit_seconds: must be more than 0"),
        ({"name": ""}, "name: must not be empty"),
        ({"name": "n" * 200}, "name: must have at most 128 characters"),
        ({"argv": ["a"] * 160_000}, "argv: must have at most 157286 of them"),
        (
            {"queue": "a b"},
            "queue: must be letters, digits, `.`, `_`, `/` and `-`, a letter or digit first",
        ),
        ({"env": {"A-B": "1"}}, "env: must be letters, digits and `_`, no digit first"),
        ({"cwd": "here"}, "cwd: must be an absolute path"),
        ({"pull": "no"}, "pull: must be missing or always or never, not 'no'"),
        ({"retry": {"backoff": "no"}}, "retry.backoff: must be fixed or exponential, not 'no'"),
        ({"budget_reset_seconds": "1h"}, "budget_reset_seconds: must be off, not '1h'"),
        ({"nice": 1}, ": there is no field 'nice'"),
        (["a"], ": must be a table of fields, not a list"),
    ],
)
def test_in_words(fields: object, words: str) -> None:
    assert said(fields) == words


def test_every_pattern_of_a_job_has_its_words() -> None:
    for fields in (
        {"name": "\n"},
        {"queue": "-"},
        {"project": "-"},
        {"idempotency_key": " "},
        {"image": "-"},
        {"cwd": "."},
        {"labels": {"-": ""}},
        {"env": {"-": ""}},
    ):
        assert "another way" not in said(fields)
        assert "^" not in said(fields)


def test_long_words_are_cut() -> None:
    assert len(said({"pull": "x" * 5000})) < 120


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"labels": {"x": "1", "a b": "c", "y": "2"}}, 'labels["a b"]'),
        ({"labels": {"x": "1", "k": "v" * 300}}, 'labels["k"]'),
        ({"env": {"A": "1", "B": 5}}, 'env["B"]'),
        ({"host_labels": {f"n{i}": "v" for i in range(99)}}, "host_labels"),
        ({"gpus": "many"}, "gpus"),
    ],
)
def test_an_entry_of_a_table_is_named_by_its_key(fields: dict[str, object], where: str) -> None:
    """Also in a request of many jobs, which is left as it was."""
    body = {"jobs": [{"argv": ["a"]}, {"argv": ["a"], **fields}]}
    before = msgspec.json.encode(body)
    for value, kind, prefix in ((body, BatchRequest, "jobs[1]."), (body["jobs"][1], JobSpec, "")):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.convert(value, kind)
        assert locate(caught.value, value, kind)[1] == prefix + where
    assert msgspec.json.encode(body) == before


def test_what_a_person_wrote_is_refused_in_plain_words_with_its_place() -> None:
    options = {"url": "http://x", "state_dir": "/s", "labels": {"rack": "b1", "a b": "c"}}
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(options, AgentConfig)
    refused = refuse(caught.value, options, AgentConfig, "the agent cannot be run like this")
    assert refused.message.startswith(
        'the agent cannot be run like this: labels["a b"]: must be le'
    )
    assert refused.field == 'labels["a b"]'
