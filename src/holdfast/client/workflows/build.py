"""A workflow built in Python.

    wf = holdfast.Workflow("contact-sheet")
    frames = wf.add(decode, "in.mp4")
    variants = wf.map(variant, frames.out)
    wf.add(sheet, variants.out)
    run = wf.submit()
    run.wait()

A node's result is `node.out`; a part of it `node.out["frames"][0]`. Passed as an argument to
another node it orders the two nodes, and the result takes its place when the other node starts.
"""

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.specs import build_spec, read_function_fields
from holdfast.client.workflows.results import read_set_results, read_value
from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.floats import mark_floats
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.settings.resolve import parse_duration
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.types import is_mismatch, item_of
from holdfast.core.workflows.values import (
    ANSWER_SECONDS,
    AskWork,
    CallWork,
    Condition,
    JobWork,
    NodeSpec,
    OnFailure,
    WorkflowSpec,
)
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.mismatch import refuse

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.workflows.records import NodeRecord
    from holdfast.wire.workflows import NodeView, RunView


class Output:
    """The result of a node, or a part of it, before it is there. annotation: its type, if known."""

    def __init__(self, node: str, path: tuple[str | int, ...] = (), annotation: Any = Any) -> None:
        self.node = node
        self.path = path
        self.annotation = annotation

    def __getitem__(self, key: str | int) -> "Output":
        return Output(self.node, (*self.path, key))

    def __iter__(self) -> typing.NoReturn:
        raise TypeError(
            f"the result of node {self.node} is known only when the run is there: use "
            "Workflow.map to call a function for each of its items"
        )

    def __bool__(self) -> typing.NoReturn:
        raise TypeError(
            f"the result of node {self.node} is known only when the run is there: use skip_if"
        )

    def refer(self) -> dict[str, Any]:
        """Return the reference to this output, as JSON."""
        return {"$node": self.node, **({"path": list(self.path)} if self.path else {})}


class WorkflowNode:
    """A node of a workflow that is being built."""

    def __init__(self, spec: NodeSpec, annotation: Any = Any) -> None:
        self.spec = spec
        self.name = spec.name
        self.out = Output(spec.name, (), annotation)

    def __repr__(self) -> str:
        return f"<node {self.name}: {self.spec.kind}>"


SkipIf = Output | Condition | None


class Workflow:
    """A workflow that is being built; see `WorkflowSpec` for `on_failure` and `out_dir`."""

    def __init__(
        self,
        name: str,
        *,
        project: str = "default",
        on_failure: OnFailure = "cancel_queued",
        out_dir: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._fields = {
            "project": project,
            "on_failure": on_failure,
            "out_dir": out_dir,
            "labels": dict(labels or {}),
        }
        self._nodes: dict[str, WorkflowNode] = {}
        self._folders: dict[str, str] = {}  # node → the folder that goes along with it

    def add(
        self,
        function: Any,
        /,
        *args: Any,
        name: str | None = None,
        after: Sequence[WorkflowNode | str] = (),
        skip_if: SkipIf = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> WorkflowNode:
        """Add a call of a function that `@holdfast.task` declared, or that "module:name" names.

        options: options of `@holdfast.task` for this node alone (queue, model, retry, …).
        """
        options, folder = _take_workdir(options, getattr(function, "workdir", None))
        spec, target = _find_function(function, options)
        given = _bind_arguments(target, args, kwargs, name or spec.function)
        work = CallWork(spec=spec, args=_plain(given))
        returns = _annotation(target, "return")
        return self._keep(name, spec, returns, folder, call=work, after=after, skip_if=skip_if)

    def map(
        self,
        function: Any,
        over: Any,
        /,
        *args: Any,
        name: str | None = None,
        item_name: str | None = None,
        after: Sequence[WorkflowNode | str] = (),
        skip_if: SkipIf = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> WorkflowNode:
        """Add a call for each item of a list, which may be another node's result. The item is
        passed as the first argument, or as the one called `item_name`; the node's result is the
        list of results in the order of the items."""
        options, folder = _take_workdir(options, getattr(function, "workdir", None))
        spec, target = _find_function(function, options)
        label = name or spec.function
        if isinstance(over, Output):
            item: Any = Output(over.node, over.path, item_of(over.annotation))
        else:
            over = list(over)
            item = over[0] if over else None
        parameter = item_name or _name_first(target, label)
        given = _bind_arguments(target, (), {}, label, {parameter: item}, args, kwargs)
        del given[parameter]
        work = CallWork(spec=spec, args=_plain(given), over=_plain(over), item=parameter)
        returns = _annotation(target, "return")
        made = list[returns] if returns is not Any else Any  # type: ignore[valid-type]  # a value
        return self._keep(name, spec, made, folder, call=work, after=after, skip_if=skip_if)

    def job(
        self,
        name: str,
        *,
        after: Sequence[WorkflowNode | str] = (),
        skip_if: SkipIf = None,
        inputs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> WorkflowNode:
        """Add a job; `fields` are those of `Client.submit` (argv, gpus, tasks, image, workdir, …). Its
        result is its id, exit code and count of attempts; `inputs` are in `HOLDFAST_INPUTS`."""
        fields, folder = _take_workdir(fields, None)
        work = JobWork(spec=build_spec(fields), inputs=_plain(dict(inputs or {})))
        return self._keep(name, None, dict, folder, job=work, after=after, skip_if=skip_if)

    def ask(
        self,
        prompt: str,
        choices: Sequence[str] = (),
        *,
        name: str | None = None,
        timeout: float | str = ANSWER_SECONDS,
        default: str | None = None,
        after: Sequence[WorkflowNode | str] = (),
        skip_if: SkipIf = None,
    ) -> WorkflowNode:
        """Add a question to a person, which holds no host while it waits. timeout: seconds, "10m",
        or "off"."""
        if isinstance(timeout, str) and timeout != "off":
            timeout = parse_duration(timeout)
        work = _convert(
            {"prompt": prompt, "choices": list(choices), "timeout_seconds": timeout,
             "default": default},
            AskWork,
        )  # fmt: skip
        return self._keep(name or "ask", None, str, ask=work, after=after, skip_if=skip_if)

    def _keep(
        self,
        name: str | None,
        spec: FunctionSpec | None,
        annotation: Any,
        folder: str | None = None,
        *,
        after: Sequence[WorkflowNode | str],
        skip_if: SkipIf,
        **work: Any,
    ) -> WorkflowNode:
        wanted = name or ("" if spec is None else spec.function.rpartition(":")[2])
        made = self._name(wanted, exact=name is not None and spec is not None)
        condition = Condition(value=skip_if.refer()) if isinstance(skip_if, Output) else skip_if
        names = [node.name if isinstance(node, WorkflowNode) else node for node in after]
        fields = {"name": made, "after": names, "skip_if": condition, **work}
        node = WorkflowNode(_convert(msgspec.to_builtins(fields), NodeSpec), annotation)
        self._nodes[made] = node
        if folder is not None:
            self._folders[made] = folder
        return node

    def _name(self, wanted: str, *, exact: bool) -> str:
        if wanted not in self._nodes:
            return wanted
        if exact:
            raise ValidationError(f"two nodes are called {wanted}; give one another name")
        number = 2
        while f"{wanted}-{number}" in self._nodes:
            number += 1
        return f"{wanted}-{number}"

    @property
    def spec(self) -> WorkflowSpec:
        """Return the workflow as it is submitted. Raises ValidationError, as `check_workflow`
        does."""
        nodes = [node.spec for node in self._nodes.values()]
        plain = {"name": self.name, "nodes": msgspec.to_builtins(nodes), **self._fields}
        spec: WorkflowSpec = _convert(plain, WorkflowSpec)
        check_workflow(spec)
        return spec

    def submit(self, client: "Client | None" = None, *, run_id: str | None = None) -> "WorkflowRun":
        """Submit the workflow, by a new client where none is given; the folders that its nodes take
        along are sent first."""
        client = client or _open_client()
        spec = self.spec
        sent: dict[tuple[str, str], CodeRef] = {}
        nodes = [self._bring(node, client, sent) for node in spec.nodes]
        spec = msgspec.structs.replace(spec, nodes=nodes)
        return WorkflowRun(client.submit_workflow(spec, run_id), client)

    def _bring(
        self, node: NodeSpec, client: "Client", sent: dict[tuple[str, str], CodeRef]
    ) -> NodeSpec:
        """Return a node with the code of its folder; each folder is sent once."""
        work = node.call or node.job
        if work is None or work.spec.code is not None or node.name not in self._folders:
            return node
        key = (self._folders[node.name], work.spec.project)
        if key not in sent:
            sent[key] = client.send_code(key[0], project=key[1])
        spec = msgspec.structs.replace(work.spec, code=sent[key])
        name = "job" if node.call is None else "call"
        return msgspec.structs.replace(node, **{name: msgspec.structs.replace(work, spec=spec)})


class WorkflowRun:
    """A run of a workflow, through a client."""

    def __init__(self, view: "RunView", client: "Client") -> None:
        self.id = view.id
        self.view = view
        self._client = client

    def refresh(self) -> "RunView":
        """Return the run's present record."""
        self.view = self._client.workflow(self.id)
        return self.view

    def wait(self, timeout: float | None = None) -> "RunView":
        """Wait until the run has ended. Raises TimeoutError after `timeout` seconds."""
        self.view = self._client.wait_workflow(self.id, timeout)
        return self.view

    def nodes(self) -> "list[NodeRecord]":
        """Return the run's nodes."""
        return self._client.workflow_nodes(self.id)

    def node(self, node: WorkflowNode | str) -> "NodeView":
        """Return one node with its result."""
        name = node.name if isinstance(node, WorkflowNode) else node
        return self._client.workflow_node(self.id, name)

    def result(self, node: WorkflowNode | str) -> Any:
        """Return a node's result; for a map, the list of its results, with null for calls that did
        not succeed. The result is None where the node was skipped, or ended before it had calls."""
        view = self.node(node)
        if view.kind.value == "map" and view.result is None and view.ref is not None:
            try:
                return read_set_results(self._client, view.ref)
            except NotFound:
                if view.state.value == "succeeded":
                    raise
                return None
        return read_value(self._client, view.result)

    def answer(self, node: WorkflowNode | str, answer: str) -> None:
        """Answer a node's question."""
        name = node.name if isinstance(node, WorkflowNode) else node
        self._client.answer_node(self.id, name, answer)

    def cancel(self, reason: str = "", *, hard: bool = False) -> "RunView":
        """Cancel the run: waiting work at once, running work cooperatively."""
        self.view = self._client.cancel_workflow(self.id, reason, hard=hard)
        return self.view

    def restart(self, reason: str = "", *, origins: Sequence[WorkflowNode | str] = ()) -> "RunView":
        """Run again the nodes that did not succeed, and the nodes `origins` with all nodes that
        follow from them."""
        names = [node.name if isinstance(node, WorkflowNode) else node for node in origins]
        self.view = self._client.restart_workflow(self.id, reason, origins=names)
        return self.view


def _open_client() -> "Client":
    from holdfast.client.synchronous import Client

    return Client()


def _convert(plain: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise refuse(error, plain, kind) from None


def _plain(value: Any) -> Any:
    """Return a value as JSON, with outputs as references; a key `$node` of the value's own is kept
    apart."""
    if isinstance(value, Output):
        return value.refer()
    if isinstance(value, WorkflowNode):
        raise ValidationError(f"give {value.name}.out, the result of node {value.name}")
    if isinstance(value, Mapping):
        inside = {str(key): _plain(part) for key, part in value.items()}
        if "$node" in inside or inside.keys() == {"$value"}:
            return {"$value": inside}
        return inside
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    try:
        return mark_floats(msgspec.to_builtins(value, enc_hook=_write_path))
    except TypeError as error:
        raise ValidationError(
            f"{value!r:.80} cannot be an argument of a node, because it is no JSON: {error}"
        ) from None


def _write_path(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a {type(value).__qualname__} has no JSON form")


def _take_workdir(
    given: Mapping[str, Any] | None, folder: str | None
) -> tuple[dict[str, Any], str | None]:
    """Return the options without `workdir`, and the folder that goes along. folder: where the
    options name none."""
    left = dict(given or {})
    named = left.pop("workdir", None)
    return left, folder if named is None else os.path.abspath(os.fspath(named))


def _find_function(
    function: Any, options: Mapping[str, Any] | None
) -> tuple[FunctionSpec, Callable[..., Any] | None]:
    """Return the declaration of a function, and the Python function itself where it can be imported
    here."""
    spec = function if isinstance(function, FunctionSpec) else getattr(function, "spec", None)
    if isinstance(function, str):
        spec = _convert({"function": function}, FunctionSpec)
    if not isinstance(spec, FunctionSpec):
        raise ValidationError(
            f"{function!r} is no task: declare the function with @holdfast.task, or name it as "
            '"module:function"'
        )
    if options:
        known = msgspec.to_builtins(spec) | msgspec.to_builtins(read_function_fields(options))
        spec = _convert(known, FunctionSpec)
    if callable(function):
        getattr(function, "codec", None)  # refuses annotations that have no JSON form
    target = inspect.unwrap(function) if callable(function) else None
    return spec, target


def _annotation(target: Callable[..., Any] | None, name: str) -> Any:
    if target is None:
        return Any
    try:
        return typing.get_type_hints(target).get(name, Any)
    except Exception:  # a name that cannot be found here is not known
        return Any


def _read_signature(target: Callable[..., Any] | None) -> inspect.Signature | None:
    if target is None:
        return None
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def _name_first(target: Callable[..., Any] | None, label: str) -> str:
    signature = _read_signature(target)
    first = next(iter(signature.parameters.values()), None) if signature else None
    if first is None or first.kind not in (first.POSITIONAL_OR_KEYWORD, first.KEYWORD_ONLY):
        raise ValidationError(
            f"node {label}: say with item_name which parameter takes the items, because the "
            "function's own parameters are not known here"
        )
    return first.name


def _bind_arguments(
    target: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    label: str,
    item: Mapping[str, Any] = MappingProxyType({}),
    more: Sequence[Any] = (),
    named: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return arguments by their parameters' names. item, more, named: for a map, the item's
    parameter, and the arguments after it.

    Raises:
        ValidationError: the arguments do not fit the function's parameters, or the result of
        another node does not fit its parameter's annotation.
    """
    signature = _read_signature(target)
    if signature is None:
        if args or more:
            raise ValidationError(
                f"node {label}: name its arguments, because the function is not here to say what "
                "its parameters are called"
            )
        return {**item, **kwargs, **named}
    try:
        if item:
            rest = [p for p in signature.parameters.values() if p.name not in item]
            bound = {**item, **signature.replace(parameters=rest).bind(*more, **named).arguments}
        else:
            bound = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise ValidationError(f"node {label}: {error}") from None
    for parameter, value in bound.items():
        wanted = _annotation(target, parameter)
        if isinstance(value, Output) and is_mismatch(value.annotation, wanted):
            raise ValidationError(
                f"node {label}: its parameter {parameter} takes {_say(wanted)}, and node "
                f"{value.node} gives {_say(value.annotation)}",
                code="type_mismatch",
            )
    return bound


def _say(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
