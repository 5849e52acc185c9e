"""A new thing is declared once, as a record, its operations and what a person may do with it, and has
all faces without another line."""

from __future__ import annotations

import asyncio
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any

import click
import msgspec
import strawberry
from click.testing import CliRunner
from starlette.responses import Response

from holdfast.cli.operate.resource import resource
from holdfast.cli.options import options_of
from holdfast.client.rest import ask
from holdfast.controller.app import Router
from holdfast.controller.graphql.every import mirror_every
from holdfast.controller.graphql.scalars import make_config
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.openapi import build_openapi
from holdfast.controller.routes import bind_all
from holdfast.core.records import TokenRecord
from holdfast.web.reader import ApiReader
from holdfast.wire.operations.acts import Act
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads


class Robot(msgspec.Struct, frozen=True, kw_only=True):
    """A robot."""

    name: str
    arms: int = 2
    tools: dict[str, int] = {}


class StopRobot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stop a robot.

    reason: Shown with the robot.
    delay_seconds: When it stops.
    """

    reason: Annotated[str, msgspec.Meta(max_length=40)] = ""
    delay_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def declare() -> ModuleType:
    """The one place."""
    room: Any = ModuleType("robots")
    path = "/v1/robots/{name}"
    room.LIST_ROBOTS = reads("/v1/robots", "Every robot.", PageOf(Robot))
    room.GET_ROBOT = reads(path, "One robot.", Robot)
    room.STOP_ROBOT = Operation(
        "POST", path + "/stop", Role.SUBMIT, "Stop it.", body=StopRobot, answers={200: Robot}
    )
    room.ACT = Act(operation=room.STOP_ROBOT, button="Stop", ask="It stands still.", reason=True)
    room.__dict__.update(list_robots=list_robots, get_robot=get_robot, stop_robot=stop_robot)
    return room


ROBOTS = {"a": Robot(name="a", tools={"saw": 1}), "b": Robot(name="b", arms=4)}


async def list_robots(call: ApiCall) -> Response:
    return answer_page(list(ROBOTS.values()))


async def get_robot(call: ApiCall) -> Response:
    return answer_json(ROBOTS[call.params["name"]])


async def stop_robot(call: ApiCall) -> Response:
    asked = await call.body(StopRobot)
    return answer_json(Robot(name=f"{call.params['name']}: {asked.reason}"))


ROOM: Any = declare()
ENDPOINTS = tuple(bind_all(ROOM, ROOM))


async def serve(scope: Any, receive: Any, send: Any) -> None:
    """REST, without the rest of the controller."""
    node, params = Router(ENDPOINTS).find(scope["raw_path"].decode())
    scope["path_params"] = params
    call = ApiCall(SimpleNamespace(store=None), scope, receive)  # type: ignore[arg-type]  # the handlers ask for nothing
    response = await node.methods[scope["method"]].handle(call)
    await response(scope, receive, send)


def make_reader() -> ApiReader:
    token: Any = SimpleNamespace(role="submit")
    assert TokenRecord  # what a reader acts as
    return ApiReader(serve, token)


def test_rest_serves_it_and_openapi_describes_it() -> None:
    page = build_openapi(ENDPOINTS)
    assert set(page["paths"]) == {"/v1/robots", "/v1/robots/{name}", "/v1/robots/{name}/stop"}
    assert {"Robot", "StopRobot"} <= set(page["components"]["schemas"])


def test_the_sdk_calls_it() -> None:
    reader = make_reader()
    found = asyncio.run(reader.call(ask(ROOM.LIST_ROBOTS)))
    assert found.items == list(ROBOTS.values())
    assert asyncio.run(reader.call(ask(ROOM.GET_ROBOT, "b"))) == ROBOTS["b"]
    stopped = asyncio.run(reader.call(ask(ROOM.STOP_ROBOT, "a", body=StopRobot(reason="oil"))))
    assert stopped.name == "a: oil"


def test_the_command_line_has_its_list_and_its_options() -> None:
    columns = {"NAME": lambda r: r.name, "ARMS": lambda r: str(r.arms)}

    @resource("NAME", columns)
    def robots(client: Any) -> list[Robot]:
        """List robots."""
        return list(ROBOTS.values())

    assert robots.draw([ROBOTS["b"]]).split() == ["NAME", "ARMS", "b", "4"]

    @click.command()
    @options_of(StopRobot, "reason delay", fields={"delay": "delay_seconds"})
    def stop(**given: Any) -> None:
        click.echo(given)

    text = " ".join(CliRunner().invoke(stop, ["--help"]).output.split())
    assert "--reason TEXT Shown with the robot." in text
    assert "--delay TIME When it stops." in text


def test_a_page_offers_its_act() -> None:
    assert (ROOM.ACT.method, ROOM.ACT.path, ROOM.ACT.role) == (
        "POST",
        "/v1/robots/{name}/stop",
        "submit",
    )


def test_graphql_mirrors_it() -> None:
    config = make_config()

    class Root:
        here: bool = True

    root = mirror_every(Root, [ROOM.LIST_ROBOTS, ROOM.GET_ROBOT, ROOM.STOP_ROBOT])
    schema = strawberry.Schema(query=strawberry.type(root, name="Query"), config=config)

    async def call(read: Any) -> Any:
        return await read()

    reads_: Any = SimpleNamespace(
        api=make_reader(), call=call, pack=lambda value: msgspec.Raw(msgspec.json.encode(value))
    )
    query = '{ robots(first: 1) { next nodes { name arms tools } } robot(name: "b") { arms } }'
    done = asyncio.run(schema.execute(query, context_value=SimpleNamespace(reads=reads_)))
    assert done.errors is None
    assert msgspec.json.decode(msgspec.json.encode(done.data)) == {
        "robots": {"next": "1", "nodes": [{"name": "a", "arms": 2, "tools": {"saw": 1}}]},
        "robot": {"arms": 4},
    }
