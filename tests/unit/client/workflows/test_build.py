"""Workflows as users build them: in Python and in files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.client.workflows.build import Workflow
from holdfast.client.workflows.files import build_workflow, read_references, read_workflow
from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.retry import RetryFields
from holdfast.core.workflows.values import MAX_EDGES, WorkflowSpec
from holdfast.errors import ValidationError


class Task:
    """A function as `@holdfast.task` leaves it: callable, with its declaration."""

    def __init__(self, function: Any) -> None:
        self.spec = FunctionSpec(function=f"mytasks:{function.__name__}")
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


@Task
def decode(path: str) -> list[int]:
    return [len(path)]


@Task
def variant(image: int, strength: float = 1.0) -> int:
    return image


@Task
def sheet(images: list[int], title: str = "") -> str:
    return title


class Sender:
    """A client that keeps what is sent and submitted."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def send_code(self, folder: str, *, project: str) -> CodeRef:
        self.sent.append((folder, project))
        return CodeRef(digest=f"{len(self.sent)}" * 64)

    def submit_workflow(self, spec: WorkflowSpec, run_id: str | None) -> Any:
        self.spec = spec
        return SimpleNamespace(id="r")


def test_the_folders_of_nodes_go_along_each_of_them_once(tmp_path: Path) -> None:
    wf, client = Workflow("sheet"), Sender()
    first = wf.add(decode, "a.png", options={"workdir": tmp_path})
    wf.map(variant, first.out, options={"workdir": tmp_path})
    wf.job("train", argv=["true"], workdir=tmp_path / "more")
    wf.add(sheet, [1])
    wf.submit(cast(Any, client))
    assert client.sent == [(str(tmp_path), "default"), (str(tmp_path / "more"), "default")]
    works = [node.call or node.job for node in client.spec.nodes]
    codes = [work.spec.code for work in works if work is not None]
    assert [code and code.digest[0] for code in codes] == ["1", "1", "2", None]


def test_outputs_become_references_and_order() -> None:
    wf = Workflow("sheet", out_dir="/out")
    frames = wf.add(decode, "a.png")
    made = wf.map(variant, frames.out, strength=0.5)
    last = wf.add(sheet, made.out, title="all", after=[frames])
    spec = wf.spec
    nodes = {node.name: node for node in spec.nodes}
    assert list(nodes) == ["decode", "variant", "sheet"]
    assert nodes["decode"].call is not None
    assert nodes["decode"].call.args == {"path": "a.png"}
    call = nodes["variant"].call
    assert call is not None
    assert (call.over, call.item, call.args) == ({"$node": "decode"}, "image", {"strength": 0.5})
    assert nodes["sheet"].call is not None
    assert nodes["sheet"].call.args == {"images": {"$node": "variant"}, "title": "all"}
    assert (nodes["sheet"].after, last.name) == (("decode",), "sheet")


def test_a_type_that_cannot_fit_is_found_when_it_is_built() -> None:
    wf = Workflow("wrong")
    frames = wf.add(decode, "a.png")
    with pytest.raises(
        ValidationError, match=r"image takes int, and node decode gives list\[int\]"
    ):
        wf.add(variant, frames.out)
    with pytest.raises(ValidationError, match="missing a required argument: 'path'"):
        wf.add(decode)
    with pytest.raises(ValidationError, match="unexpected keyword argument"):
        wf.map(variant, frames.out, colour="red")
    wf.map(variant, frames.out)  # its items fit
    with pytest.raises(ValidationError, match=r"give decode\.out"):
        wf.add(sheet, frames)
    with pytest.raises(TypeError, match=r"Workflow\.map"):
        list(frames.out)


def test_functions_that_are_only_named_take_named_arguments() -> None:
    wf = Workflow("named")
    wf.add("other.place:work", x=1)
    wf.map("other.place:each", [1, 2], item_name="x", name="each")
    with pytest.raises(ValidationError, match="name its arguments"):
        wf.add("other.place:work", 1)
    with pytest.raises(ValidationError, match="item_name"):
        wf.map("other.place:each", [1])
    with pytest.raises(ValidationError, match="is no task"):
        wf.add(len, "x")
    assert [node.name for node in wf.spec.nodes] == ["work", "each"]


def test_a_key_like_a_reference_in_ones_own_data_stays_data() -> None:
    wf = Workflow("data")
    wf.add("m:f", x={"$node": "is mine"})
    (node,) = wf.spec.nodes
    assert node.call is not None
    assert node.call.args == {"x": {"$value": {"$node": "is mine"}}}


FILE = """
name = "nightly"
on_failure = "continue"

[node.fetch]
argv = ["python", "fetch.py"]
time_limit = "5m"

[node.decode]
task = "mytasks:decode"
model = "clip"
args = {path = "${fetch.job}", note = "$${kept}"}

[node.variant]
task = "mytasks:variant"
over = "${decode.frames.0}"
item = "image"
after = "fetch"

[node.publish]
ask = "publish it?"
choices = ["yes", "no"]
timeout = "10m"
skip_if = "${variant}"
"""


def test_a_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "nightly.toml"
    path.write_text(FILE)
    spec = read_workflow(path)
    fetch, decoded, each, publish = spec.nodes
    assert fetch.job is not None
    assert fetch.job.spec.time_limit_seconds == 300.0
    assert decoded.call is not None
    assert decoded.call.spec.model == "clip"
    wanted = {"path": {"$node": "fetch", "path": ["job"]}, "note": "${kept}"}
    assert decoded.call.args == wanted
    assert each.call is not None
    assert each.call.over == {"$node": "decode", "path": ["frames", 0]}
    assert each.after == ("fetch",)
    assert publish.ask is not None
    assert publish.ask.timeout_seconds == 600.0
    assert publish.skip_if is not None
    assert msgspec.json.decode(msgspec.json.encode(spec), type=WorkflowSpec) == spec


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = 1", "at least one"),
        ("name = 'x'\nwho = 1", "no field 'who'"),
        ("name = 'x'\n[node.a]\nargv = ['true']\nafter = ['b']", "no node 'b'"),
        ("name = 'x'\n[node.a]\ntask = 'm:f'\ncolour = 1", "node a: there is no field 'colour'"),
        ("name = 'x'\n[node.a]\nargv = ['true']\ngpu = 1", "node a: "),
        ("name = 'x'\n[node.a]\ntask = 'm:f'\nover = [1]", "go together"),
        ("name = 'x'\n[node.a]\nargv = ['true']\nafter = ['a']", "waits for itself"),
        ("name = 'x'\n[node.'../up']\nargv = ['true']", "node"),
        ("name = 'x'\n[node.a]\nfunction = 'm:f'", "a call of a function has task"),
        (
            "name = 'x'\n[node.a]\nargv = ['true']\n[node.b]\ntask = 'm:f'\nargs = {to = 'x-${a.job}'}",
            "node b: 'x-${a.job}' holds a reference to node a and more",
        ),
        ("name = 'x'\n[", "no TOML"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_name(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValidationError) as found:
        read_workflow(path)
    assert str(path) in found.value.message
    assert sentence in found.value.message


def test_a_cycle_and_a_doubled_name_are_refused() -> None:
    job = {"argv": ["true"]}
    nodes = {"a": {**job, "after": "b"}, "b": {**job, "after": "c"}, "c": {**job, "after": "a"}}
    with pytest.raises(ValidationError, match="in a circle: a → c → b → a") as found:
        build_workflow({"name": "x", "node": {"s": job, **nodes}})
    assert found.value.code == "cycle"
    wf = Workflow("x")
    wf.add("m:f")
    with pytest.raises(ValidationError, match="two nodes are called f"):
        wf.add("m:f", name="f")


def test_references_are_read_whole_or_not_at_all() -> None:
    assert read_references(["${a}", "x${a}", {"k": "${a.b.1}"}]) == [
        {"$node": "a"},
        "x${a}",
        {"k": {"$node": "a", "path": ["b", 1]}},
    ]


def test_a_call_in_a_file_has_the_words_of_its_decorator(tmp_path: Path) -> None:
    path = tmp_path / "words.toml"
    limits = "time_limit = '2h'\nretry = 2\nmemory = '1G'\nstall_timeout = 'off'"
    path.write_text(f"name = 'x'\n[node.a]\ntask = 'm:f'\n{limits}")
    work = read_workflow(path).nodes[0].call
    assert work is not None
    options = {"time_limit": "2h", "retry": 2, "memory": "1G", "stall_timeout": "off"}
    workflow = Workflow("x")
    workflow.add("m:f", options=options)
    (again,) = workflow.spec.nodes
    assert again.call is not None
    assert again.call.spec == work.spec
    assert work.spec.retry == RetryFields(max_retries=2)
    assert (work.spec.time_limit_seconds, work.spec.memory_bytes) == (7200.0, 1 << 30)
    path.write_text("name = 'x'\n[node.a]\ntask = 'm:f'\ntime_limit = 'soon'")
    with pytest.raises(ValidationError, match="node a: time_limit: "):
        read_workflow(path)
    path.write_text("name = 'x'\n[node.a]\ntask = 'm:f'\nargs = {to = '$${a} and ${HOME} b'}")
    kept = read_workflow(path).nodes[0].call
    assert kept is not None
    assert kept.args == {"to": "${a} and ${HOME} b"}


def test_too_many_edges_are_refused() -> None:
    assert MAX_EDGES == 1_000_000
    names = [f"n{i}" for i in range(1500)]
    job = {"spec": {"argv": ["true"]}}
    nodes = [{"name": n, "job": job} for n in names]
    nodes += [{"name": f"m{i}", "job": job, "after": names} for i in range(700)]
    from holdfast.core.workflows.check import check_workflow

    with pytest.raises(ValidationError, match="1050000 edges"):
        check_workflow(msgspec.convert({"name": "x", "nodes": nodes}, WorkflowSpec))
