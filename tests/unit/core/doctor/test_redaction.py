"""What is taken out of a report: known secrets in any form, and what looks like one (DOCTOR-1)."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.doctor.redaction import MASK, Redaction, find_passwords, find_secrets

SECRET = "s3cr3tValue99"


@given(
    st.text(st.characters(codec="utf-8"), min_size=4, max_size=40),
    st.text(max_size=50), st.text(max_size=50),
)  # fmt: skip
def test_a_known_secret_is_taken_out_wherever_it_stands(
    secret: str, before: str, after: str
) -> None:
    said = Redaction([secret]).take_out(f"{before}{secret}{after}")
    assert secret not in said.replace(MASK, "") or secret in f"{before}{after}"


def test_a_known_secret_is_taken_out_in_its_other_forms() -> None:
    odd = 'p@ss/w"rd+1'
    redaction = Redaction([odd])
    encoded = base64.b64encode(odd.encode()).decode()
    for form in (odd, quote(odd, safe=""), encoded, json.dumps(odd)[1:-1]):
        assert form not in redaction.take_out(f"x {form} y")


@pytest.mark.parametrize(
    "line",
    [
        f"postgresql://me:{SECRET}@db.example:5432/holdfast",
        f"https://{SECRET}@git.example/repo.git",
        f"https://user:a/{SECRET}@git.example/repo.git",
        f"https://api.example/x?token={SECRET}&y=1",
        f"https://bucket.example/x?X-Amz-Security-Token={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"authorization: Basic {SECRET}==",
        f'{{"password": "{SECRET}"}}',
        f'{{"message":"sent {{\\"api_key\\": \\"{SECRET}\\"}}"}}',
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"export WANDB_API_KEY='{SECRET} and more'",
        f"mysql --password {SECRET} -h db",
        f"curl --header-token={SECRET}",
        f"db_passwd: {SECRET}",
        f"host=db user=me password={SECRET}",
        f"the token is {SECRET}",
        f"hft_{SECRET}",
        f"hfk_{SECRET}",
        f"hfb_06ch2v8wq1m4kz7d9x3t.0.3.{SECRET}",
        f"ghp_{SECRET}{SECRET}",
        f"hf_{SECRET}{SECRET}",
        f"sk-{SECRET}{SECRET}",
        f"eyJhbGciOi.{SECRET}.{SECRET}",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
    ],
)
def test_what_looks_like_a_secret_is_taken_out(line: str) -> None:
    assert SECRET not in Redaction([]).take_out(line)


@pytest.mark.parametrize(
    "line",
    [
        "job 06ch2v8wq1m4kz7d9x3t failed with exit code 1",
        "GET https://holdfast.example:7878/v1/jobs?limit=10 200",
        '"ca_file": "/etc/ssl/ca.pem"',
        '"join_token_file": "/var/lib/holdfast/join"',
        "the lease of task 06ch:0:3 was renewed",
        "mailto:me@example.org",
        "2026-11-26 20:26:18.729 UTC [21091] LOG:  checkpoint complete: wrote 3 buffers",
    ],
)
def test_what_helps_stays(line: str) -> None:
    assert Redaction([]).take_out(line) == line


def test_json_stays_json() -> None:
    value = {
        "token": "a",
        "n": {"secret": "b c", "ok": [1, None], "api_key": None},
        "u": "x://a:b@c",
    }
    said = Redaction([]).take_out(json.dumps(value, indent=2))
    assert json.loads(said) == {
        "token": MASK, "n": {"secret": MASK, "ok": [1, None], "api_key": None}, "u": f"x://{MASK}@c",
    }  # fmt: skip


def test_secrets_of_the_environment_are_known_by_name_shape_or_address() -> None:
    found = find_secrets(
        {
            "MY_TOKEN": "short1", "DB": "postgresql://u:pw%20d@h/d", "ODD": "kX9vQ2mP7zL4",
            "HOME": "/home/alice99", "PWD": "/srv/a", "TERM": "xterm-256color", "LANG": "en_US.UTF-8",
            "USE_TOKEN": "true", "PASS": "hunter2", "TOKEN_FILE": "/run/token",
        }
    )  # fmt: skip
    assert found >= {"short1", "pw%20d", "pw d", "kX9vQ2mP7zL4", "hunter2"}
    assert not found & {"/home/alice99", "/srv/a", "xterm-256color", "en_US.UTF-8", "true"}
    assert "/run/token" not in found


def test_a_dsn_of_words_gives_its_password() -> None:
    assert "a b c" in find_passwords("host=h password='a b c' user=u")
    assert "abcd" in find_passwords("host=h password=abcd")
