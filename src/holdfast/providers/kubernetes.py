"""Machines that are pods of a Kubernetes cluster (docs/guides/providers-kubernetes.md).

A pod's name is made from the intent, so the cluster itself refuses a second one (RENT-2). Its labels
say whose it is. Whether the controller runs in the cluster or outside makes no difference but for
where its credentials are.
"""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import msgspec
import yaml
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError
from lightkube.resources.core_v1 import Pod
from msgspec import Meta

from holdfast.core.fleet.instances import CreateOrder, Machine, Offer, Quote
from holdfast.providers.calls import read_retry_after, within
from holdfast.providers.config import TOKEN, GpuWord, ProviderConfig, check_order, hide, overlay
from holdfast.providers.interface import NoCapacity, ProviderDown, Refused, Throttled
from holdfast.providers.pods import (
    INSTALLATION_LABEL,
    MANAGED_LABEL,
    PodOptions,
    Tree,
    make_pod,
    show_pod,
)

_RETRY_SECONDS = 10.0
# The exceptions that lightkube raises for a file that is no kubeconfig.
_UNREADABLE = (
    ConfigError,
    OSError,
    yaml.YAMLError,
    KeyError,
    AttributeError,
    TypeError,
    ValueError,
)
# A client is made anew at this age, because a service account's token is replaced in its file.
_FRESH_SECONDS = 600.0


class KubernetesConfig(ProviderConfig, frozen=True, kw_only=True):
    """The config of a provider whose machines are pods. kubeconfig: a file; without it the pod's
    service account, $KUBECONFIG or ~/.kube/config, in this order. The other keys are those of
    `PodOptions`; an offer's values replace them key by key."""

    image: Annotated[str, Meta(min_length=1)]
    kubeconfig: str | None = None
    context: str | None = None
    namespace: Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] = "default"
    entry: list[str] = msgspec.field(default_factory=lambda: ["holdfast"])
    state: str = "/var/lib/holdfast/host"
    gpus: GpuWord = "auto"
    gpu_resource: str = "nvidia.com/gpu"
    grace_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 60
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: list[dict[str, Any]] = msgspec.field(default_factory=list)
    pull_policy: str | None = None
    pod: dict[str, Any] = msgspec.field(default_factory=dict)


class KubernetesProvider:
    """Machines that are pods of one cluster; see the module."""

    kind = "kubernetes"
    tells_prices = False

    def __init__(self, config: KubernetesConfig, installation: str) -> None:
        self._config = config
        self._installation = installation
        self._client: AsyncClient | None = None
        self._made_at = 0.0

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        """Return the offers' own prices (see `Provider`). Availability is unknown, because the
        scheduler alone knows what fits, and an autoscaler may make room."""
        return tuple(Quote(offer=offer.name, usd_per_hour=offer.usd_per_hour) for offer in offers)

    async def create(self, order: CreateOrder) -> Machine:
        """Make a pod (see `Provider`)."""
        check_order(order, self._installation)
        config = overlay(self.kind, self._config, order.offer)
        options = msgspec.convert(config, PodOptions, from_attributes=True)
        pod = _make(make_pod(order, options))
        try:
            async with self._call(f"the creation of {order.name}", order.env[TOKEN]) as client:
                made = await client.create(pod)
        except _Exists as error:
            known = await self.get_machine(order.name)
            if known is None or known.intent != order.intent:
                raise Refused(error.message) from None
            return known
        return show_pod(_read(made))

    async def list_machines(self) -> tuple[Machine, ...]:
        """Return the pods (see `Provider`)."""
        labels: dict[str, Any] = {MANAGED_LABEL: "holdfast", INSTALLATION_LABEL: self._installation}
        async with self._call("the list of pods") as client:
            found = client.list(Pod, labels=labels)
            return tuple([show_pod(_read(pod)) async for pod in found])

    async def get_machine(self, ref: str) -> Machine | None:
        """Return one pod (see `Provider`)."""
        try:
            async with self._call(f"the look at pod {ref}") as client:
                pod = _read(await client.get(Pod, ref))
        except _Absent:
            return None
        labels = pod["metadata"].get("labels") or {}
        ours = {MANAGED_LABEL: "holdfast", INSTALLATION_LABEL: self._installation}
        return show_pod(pod) if ours.items() <= labels.items() else None

    async def terminate(self, ref: str) -> None:
        """Delete a pod gracefully (see `Provider`). Nothing is forced, because a forced deletion
        does not prove that the processes are gone."""
        if await self.get_machine(ref) is None:
            return
        with contextlib.suppress(_Absent):
            async with self._call(f"the deletion of pod {ref}") as client:
                await client.delete(Pod, ref)

    async def close(self) -> None:
        """Close the client of the cluster (see `Provider`)."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @contextlib.asynccontextmanager
    async def _call(self, what: str, secret: str = "") -> AsyncIterator[AsyncClient]:
        """Yield a client for one call, and turn its failure into a provider's error."""
        async with within(self._config.deadline_seconds, f"Kubernetes: {what}"):
            try:
                yield await self._open()
            except ApiError as error:
                raise _explain(error, what, secret) from None
            except httpx.HTTPError as error:
                said = hide(str(error) or type(error).__name__, secret)
                raise ProviderDown(f"Kubernetes: {what} had no answer: {said}") from None

    async def _open(self) -> AsyncClient:
        if self._client is not None and time.monotonic() > self._made_at + _FRESH_SECONDS:
            await self.close()
        if self._client is None:
            config = _read_cluster(self._config)
            timeout = httpx.Timeout(self._config.deadline_seconds)
            self._client = AsyncClient(
                config, self._config.namespace, timeout=timeout, field_manager="holdfast"
            )
            self._made_at = time.monotonic()
        return self._client


def _read_cluster(config: KubernetesConfig) -> SingleConfig:
    """Read the cluster's address and the credentials for it. Raises Refused."""
    path = config.kubeconfig
    try:
        known = KubeConfig.from_file(path) if path else KubeConfig.from_env()
        found = known.get(config.context)
    except _UNREADABLE as error:
        place = path or "the pod's service account, $KUBECONFIG or ~/.kube/config"
        raise Refused(f"{place} names no cluster: {error!r}; set `kubeconfig`") from None
    if found is None:
        raise Refused("the kubeconfig has no current context; set `context`")
    return found


class _Exists(Refused):
    """The pod's name is in use."""


class _Absent(Refused):
    """There is no such pod, or no such namespace."""


def _make(pod: Tree) -> Pod:
    made: Pod = Pod.from_dict(pod)  # type: ignore[no-untyped-call]  # lightkube names no types here
    return made


def _read(pod: Pod) -> Tree:
    read: Tree = pod.to_dict()  # type: ignore[no-untyped-call]  # lightkube names no types here
    return read


def _explain(error: ApiError, what: str, secret: str) -> Exception:
    """Return the provider's error for an answer of the API server."""
    status = error.status
    code, message = (
        status.code or 500,
        f"Kubernetes refused {what}: {hide(status.message or '', secret)}",
    )
    if code == 409 and status.reason == "AlreadyExists":
        return _Exists(message)
    if code == 404:
        return _Absent(message)
    if code == 403 and "exceeded quota" in message:
        return NoCapacity(message)
    if code == 429:
        told = status.details.retryAfterSeconds if status.details else None
        asked = read_retry_after(error.response.headers.get("Retry-After"))
        seconds = told if told else asked
        return Throttled(
            message, retry_seconds=_RETRY_SECONDS if seconds is None else float(seconds)
        )
    if code >= 500 or code in (408, 409, 410):
        return ProviderDown(message)
    return Refused(message)
