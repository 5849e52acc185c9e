"""Pods at Runpod, by its REST API v2 (docs/guides/providers-runpod.md).

Its pods have no idempotency key and no tags, so the marks of a machine are in its environment
variables, which every listing shows; the list is read before each creation (RENT-2). Capacity that
is gone is a 400 without a code of its own, which a rule that was broken is as well.
"""

import os
import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer, Quote
from holdfast.errors import Unavailable
from holdfast.http.addresses import read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.courier import HttpAnswer, HttpRequest
from holdfast.providers.calls import read_retry_after, within
from holdfast.providers.config import (
    INSTALLATION,
    INTENT,
    TOKEN,
    ProviderConfig,
    agent_env,
    agent_words,
    check_order,
    hide,
    overlay,
)
from holdfast.providers.interface import NoCapacity, ProviderDown, Refused, Throttled

T = TypeVar("T")
_POOL = "HOLDFAST_POOL"
_RETRY_SECONDS = 30.0
_STATES = {
    "PROVISIONING": MachineState.STARTING,
    "STARTING": MachineState.STARTING,
    "TERMINATED": MachineState.GONE,
}
# A pod in these states still exists, and its disk is paid for until it is terminated.
_FAILED = {"EXITED": "its container exited", "ERROR": "its container is in an unrecoverable error"}
_REF = re.compile(r"[A-Za-z0-9_-]{1,100}")


class RunpodConfig(ProviderConfig, frozen=True, kw_only=True):
    """The config of pods at Runpod. image: the container's image; `setup` runs in it before the
    agent, by its shell. entry: the words before the agent's own. api_key_file, api_key_env: the
    file or the variable that holds the key, which is never in the config."""

    image: str | None = None
    template: str | None = None
    setup: str = ""
    entry: list[str] = msgspec.field(default_factory=lambda: ["holdfast"])
    state: str = "/var/lib/holdfast/host"
    gpu: str | None = None
    cpu: str | None = None
    cloud: Literal["SECURE", "COMMUNITY"] = "SECURE"
    data_centers: list[str] = msgspec.field(default_factory=list)
    disk_gb: Annotated[int, Meta(ge=1)] = 50
    volume: str | None = None
    volume_path: str = "/workspace"
    registry: str | None = None
    min_cuda: Annotated[str, Meta(pattern=r"^\d+\.\d+$")] | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    api_key_file: str | None = None
    api_key_env: str = "RUNPOD_API_KEY"
    url: Annotated[str, Meta(pattern=r"^(https://|http://127\.0\.0\.1(:|/|$))")] = (
        "https://api.runpod.io"
    )


class _Pod(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    status: str
    env: dict[str, str]
    cost: float
    createdAt: datetime | None = None


class _Pods(msgspec.Struct, frozen=True, kw_only=True):
    pods: list[_Pod]


class _PlaceStock(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    availability: str


class _GpuType(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    price: dict[str, float | None]
    availability: str | None = None
    dataCenters: list[_PlaceStock] = msgspec.field(default_factory=list)


class _GpuTypes(msgspec.Struct, frozen=True, kw_only=True):
    gpus: list[_GpuType]


class _Problem(msgspec.Struct, frozen=True, kw_only=True):
    title: str = ""
    detail: str = ""
    errors: list[str] = msgspec.field(default_factory=list)


class RunpodProvider:
    """Machines that are pods at Runpod; see the module."""

    kind = "runpod"
    tells_prices = True

    def __init__(self, config: RunpodConfig, installation: str) -> None:
        self._config = config
        self._installation = installation
        self._http = AsyncHttp(read_addresses(config.url), timeout_seconds=config.deadline_seconds)

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        """Return prices and availability (see `Provider`). For CPU pods only the offers' own prices
        are known."""
        quotes = []
        for offer in offers:
            config = overlay(self.kind, self._config, offer)
            if not offer.gpus:
                quotes.append(Quote(offer=offer.name, usd_per_hour=offer.usd_per_hour))
                continue
            params = {"include": "AVAILABILITY", "product": "POD", "count": str(offer.gpus)}
            params |= {"cloud": config.cloud}
            answer = await self._ask("GET", "/v2/catalog/gpus", _GpuTypes, params=params)
            quotes.append(_quote(offer, config, answer.gpus))
        return tuple(quotes)

    async def create(self, order: CreateOrder) -> Machine:
        """Make a pod (see `Provider`)."""
        check_order(order, self._installation)
        body = _make_pod(order, overlay(self.kind, self._config, order.offer))
        for known in await self.list_machines():
            if known.intent == order.intent:
                return known
        made = await self._ask("POST", "/v2/pods", _Pod, body=body, secret=order.env[TOKEN])
        return _show(made)

    async def list_machines(self) -> tuple[Machine, ...]:
        """Return the pods (see `Provider`)."""
        answer = await self._ask("GET", "/v2/pods", _Pods)
        return tuple(_show(pod) for pod in answer.pods if self._owns(pod))

    async def get_machine(self, ref: str) -> Machine | None:
        """Return one pod (see `Provider`)."""
        if not _REF.fullmatch(ref):
            raise Refused(f"{ref!r} is no id of a pod")
        pod = await self._ask("GET", f"/v2/pods/{ref}", _Pod, absent_is_none=True)
        return _show(pod) if pod is not None and self._owns(pod) else None

    async def terminate(self, ref: str) -> None:
        """Terminate a pod (see `Provider`). A pod is never stopped to be resumed, because its GPU
        may be gone by then."""
        if await self.get_machine(ref) is not None:
            await self._ask("DELETE", f"/v2/pods/{ref}", None, absent_is_none=True)

    async def close(self) -> None:
        """Close the connection (see `Provider`)."""
        self._http.close()

    def _owns(self, pod: _Pod) -> bool:
        return pod.env.get(INSTALLATION) == self._installation and INTENT in pod.env

    async def _ask(
        self,
        method: str,
        path: str,
        shape: type[T] | None,
        *,
        params: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        secret: str = "",
        absent_is_none: bool = False,
    ) -> Any:
        """Make one call and read its answer. Raises the provider's error of a failed call."""
        key, what = _read_key(self._config), f"{method} {path}"
        async with within(self._config.deadline_seconds, f"Runpod's {what}"):
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            request = HttpRequest(
                method,
                path,
                self._config.deadline_seconds,
                tuple((params or {}).items()),
                headers,
                None if body is None else msgspec.json.encode(body),
                repeatable=method == "GET",
            )
            try:
                answer = await self._http.call(request)
            except Unavailable as error:
                said = hide(error.message, key, secret)
                raise ProviderDown(f"Runpod's {what} had no answer: {said}") from None
        if answer.status == 404 and absent_is_none:
            return None
        if answer.status // 100 != 2:
            said = hide(_read_problem(answer), key, secret)
            raise _explain(method, f"Runpod's {what} answered {answer.status}: {said}", answer)
        if shape is None:
            return None
        try:
            return msgspec.json.decode(answer.body, type=shape)
        except msgspec.MsgspecError as error:
            raise ProviderDown(f"Runpod's {what} answered what cannot be read: {error}") from None


def _read_key(config: RunpodConfig) -> str:
    try:
        key = (
            Path(config.api_key_file).expanduser().read_text()
            if config.api_key_file
            else os.environ.get(config.api_key_env, "")
        ).strip()
    except OSError as error:
        raise Refused(f"Runpod's key cannot be read: {error}") from error
    if not key or not key.isascii() or not key.isprintable():
        place = config.api_key_file or f"${config.api_key_env}"
        raise Refused(f"there is no Runpod key in {place}; set `api_key_file` or `api_key_env`")
    return key


def _make_pod(order: CreateOrder, config: RunpodConfig) -> dict[str, Any]:
    """Return the body of a creation. Raises Refused for an offer that names no kind of pod."""
    offer = order.offer
    if config.image is None and config.template is None:
        raise Refused(f"offer {offer.name} names neither an `image` nor a `template`")
    words = shlex.join([*config.entry, *agent_words(order, state=config.state)])
    if config.setup:
        words = shlex.join(["sh", "-c", f"{config.setup}\nexec {words}"])
    body: dict[str, Any] = {
        "name": order.name,
        "args": words,
        "env": config.env | agent_env(order) | {_POOL: order.pool},
        "disk": config.disk_gb,
        "cloud": config.cloud,
    }
    optional = {"image": config.image, "templateId": config.template, "registry": config.registry}
    body |= {name: value for name, value in optional.items() if value is not None}
    if config.data_centers or offer.region:
        body["dataCenterIds"] = config.data_centers or [offer.region]
    if offer.gpus:
        body["gpu"] = {"id": _gpu_of(offer, config), "count": offer.gpus}
        if config.min_cuda is not None:
            body["gpu"]["minCudaVersion"] = config.min_cuda
    elif config.cpu is not None:
        body["cpu"] = {"id": config.cpu, "vcpuCount": offer.cpu_slots}
    else:
        raise Refused(f"offer {offer.name} names neither `gpus` nor the flavour of a `cpu` pod")
    if config.volume is not None:
        body["mounts"] = {"network": [{"volumeId": config.volume, "path": config.volume_path}]}
    return body


def _gpu_of(offer: Offer, config: RunpodConfig) -> str:
    gpu = config.gpu or offer.gpu_type
    if not gpu:
        raise Refused(f"offer {offer.name} names no `gpu_type`; use an id of Runpod's catalogue")
    return gpu


def _quote(offer: Offer, config: RunpodConfig, types: list[_GpuType]) -> Quote:
    gpu = _gpu_of(offer, config)
    found = next((kind for kind in types if kind.id == gpu), None)
    if found is None:
        return Quote(offer=offer.name, available=False, note=f"Runpod has no {gpu!r}")
    price, places = found.price.get(config.cloud.lower()), found.dataCenters
    wanted = config.data_centers or ([offer.region] if offer.region else [])
    levels = [p.availability for p in places if p.id in wanted] if wanted else [found.availability]
    known = [level for level in levels if level is not None]
    available = any(level != "NONE" for level in known) if known or wanted else None
    return Quote(
        offer=offer.name,
        usd_per_hour=None if price is None else price * offer.gpus,
        available=available,
        note=f"stock {' '.join(known) or 'unknown'}",
    )


def _show(pod: _Pod) -> Machine:
    failed = _FAILED.get(pod.status, "")
    return Machine(
        ref=pod.id,
        intent=pod.env.get(INTENT, ""),
        pool=pod.env.get(_POOL, ""),
        name=pod.name,
        state=_STATES.get(pod.status, MachineState.RUNNING),
        reason=f"{pod.status}: {failed}" if failed else pod.status,
        lost="node_failure" if failed else "",
        usd_per_hour=pod.cost,
        created_at=pod.createdAt,
    )


def _read_problem(answer: HttpAnswer) -> str:
    try:
        problem = msgspec.json.decode(answer.body, type=_Problem)
    except msgspec.MsgspecError:
        return answer.body[:300].decode(errors="replace")
    return "; ".join([problem.detail or problem.title, *problem.errors[:5]])[:600]


def _explain(method: str, message: str, answer: HttpAnswer) -> Exception:
    """Return the provider's error for a failed call, by the table in Runpod's description of a
    creation."""
    status = answer.status
    if status == 429:
        return Throttled(message, retry_seconds=_read_patience(answer.headers))
    if status >= 500 or status == 408 or status < 400:
        return ProviderDown(message)
    if status in (400, 409) and method == "POST":
        return NoCapacity(message)
    return Refused(message)


def _read_patience(headers: Mapping[str, str]) -> float:
    """Return the seconds until the next call: `Retry-After`, or the reset of the last window that is
    used up, as in `"minute";r=0;t=12, "hour";r=2800;t=1812`."""
    asked = read_retry_after(headers.get("retry-after"))
    if asked is not None:
        return asked
    windows = re.findall(r";r=(\d+);t=(\d+)", headers.get("ratelimit", ""))
    return max((float(t) for r, t in windows if int(r) == 0), default=_RETRY_SECONDS)
