"""Parameters in a command: one word each, and never a command (WORD-1)."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.arrays.arrays import Member, check_values, make_member
from holdfast.core.arrays.lines import fill_line, fill_words
from holdfast.core.spec import JobSpec
from holdfast.errors import ValidationError

LINES = (
    "printf %s {msg}",
    'printf %s "{msg}"',
    "printf %s ''{msg}",
    "true # it's not \"closed\nprintf %s {msg}",
    'lr=7; printf %s "${lr}" >/dev/null; printf %s {msg}',
)
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=9)


@given(value=TEXTS | st.text("$`\"'\\ {}();&|<>!#~*?\n", max_size=9))
def test_a_value_is_one_word_whatever_it_holds(value: str) -> None:
    script = "; echo; ".join(fill_line(line, {"msg": value}) for line in LINES)
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    assert done.stdout == f"{value}\n".encode() * (len(LINES) - 1) + value.encode()
    (_, _, line) = fill_words(["/bin/bash", "-ec", LINES[0]], {"msg": value})
    assert line == fill_line(LINES[0], {"msg": value})
    assert fill_words(["x", "-c", "{msg}"], {"msg": value})[2] == value


def test_what_is_the_shells_own_stays() -> None:
    line = 'for lr in a b; do echo "${lr} {lr}" {other}; done'
    assert fill_line(line, {"lr": "0.1"}) == 'for lr in a b; do echo "${lr} 0.1" {other}; done'
    assert fill_words(["sh", "-c", "echo ${lr}"], {"lr": "1"}) == ("sh", "-c", "echo ${lr}")


@pytest.mark.parametrize(
    "line",
    ["python -c 'print({msg})'", "echo $(echo {msg})", "cat <<E\n{msg}\nE", "echo `x` {msg}"],
)
def test_where_no_quoting_is_sure_a_value_is_refused_at_the_submission(line: str) -> None:
    plain, odd = (Member(index=n, params={"msg": value}) for n, value in enumerate((0.5, "a b")))
    for spec in (JobSpec(shell=line), JobSpec(argv=("bash", "-c", line))):
        check_values(spec, [plain])
        make_member(spec, "a", 1, plain)
        with pytest.raises(ValidationError, match=r"the value 'a b' of msg .*\$HOLDFAST_PARAM_MSG"):
            check_values(spec, [plain, odd])
