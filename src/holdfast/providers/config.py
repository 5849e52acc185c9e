"""The common part of all providers' configs, and the check of an order before it is used."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from holdfast.core.fleet.instances import CreateOrder, Offer
from holdfast.errors import ValidationError
from holdfast.providers.interface import Refused

C = TypeVar("C", bound="ProviderConfig")

URL, TOKEN = "HOLDFAST_URL", "HOLDFAST_JOIN_TOKEN"
INTENT, INSTALLATION = "HOLDFAST_INTENT", "HOLDFAST_INSTALLATION"
QUEUES, LABELS = "HOLDFAST_QUEUES", "HOLDFAST_LABELS"
# A name is a host name's label at the strictest provider.
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ID_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

FOLDER_VARIABLE = "HOLDFAST_MACHINES"
"""The variable with the folder for machines' folders, where a pool's config names none. `up` keeps
them in its own folder, and ends the machines when it stops."""


GpuWord = Annotated[str, Meta(pattern="^(auto|[0-9]{1,4})?$(?!\\n)")]
"""How many GPUs an agent declares: a number, or "auto" for what the drivers say."""


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """deadline_seconds: the time limit of each call to the provider (RENT-5)."""

    deadline_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0


def read_config(kind: str, config: Mapping[str, Any], shape: type[C]) -> C:
    """Read a pool's config for its provider. A number is taken where a text is wanted, as `gpus = 2`.

    Raises:
        ValidationError: a key is unknown or missing, or a value has the wrong shape.
    """
    hints = get_type_hints(shape)
    try:
        return msgspec.convert({k: _write_text(v, hints.get(k)) for k, v in config.items()}, shape)
    except msgspec.ValidationError as error:
        raise ValidationError(
            f"the config of provider {kind!r} cannot be used: {error}. It takes the keys "
            f"{', '.join(sorted(shape.__struct_fields__))}.",
            field="config",
        ) from None


def _write_text(value: Any, wanted: Any) -> Any:
    """Return a number as the text that is wanted of it, also in a table of texts; else the value."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and wanted in (str, str | None):
        return str(value)
    if wanted == dict[str, str] and isinstance(value, dict):
        return {key: _write_text(one, str) for key, one in value.items()}
    return value


def overlay(kind: str, config: C, offer: Offer) -> C:
    """Return the pool's config with the offer's own values over it. Raises ValidationError."""
    if not offer.config:
        return config
    whole = msgspec.to_builtins(config) | offer.config
    return read_config(kind, whole, type(config))


def check_installation(installation: str) -> str:
    """Return an installation's id. Raises ValidationError for an id that no tag could carry."""
    if not _ID_PATTERN.fullmatch(installation):
        raise ValidationError(
            f"the installation {installation!r} is no id: use 1 to 63 letters, digits, '-', '_' "
            "and '.', with a letter or a digit at both ends",
            field="installation",
        )
    return installation


def check_order(order: CreateOrder, installation: str) -> CreateOrder:
    """Return an order that a provider accepts. Raises Refused, which names the fault."""
    if order.installation != installation:
        raise Refused(
            f"the order of {order.installation!r} reached the provider of {installation!r}"
        )
    if not NAME_PATTERN.fullmatch(order.name):
        raise Refused(
            f"the name {order.name!r} is no machine's name: use 1 to 63 of a-z, 0-9 and '-'"
        )
    if not _ID_PATTERN.fullmatch(order.intent):
        raise Refused(f"the intent {order.intent!r} is no id of a host")
    missing = [name for name in (URL, TOKEN) if not order.env.get(name)]
    if missing:
        raise Refused(f"the order {order.name} has no {' and no '.join(missing)} for its agent")
    bad = [name for name in order.env if not _VARIABLE_PATTERN.fullmatch(name)]
    if bad or any("\0" in value for value in order.env.values()):
        raise Refused(f"the order {order.name} has a variable that no process can have: {bad}")
    return order


def agent_env(order: CreateOrder) -> dict[str, str]:
    """Return the variables that the agent starts with: the order's, with the marks by which the
    machine is found again (RENT-1)."""
    return order.env | {INTENT: order.intent, INSTALLATION: order.installation}


def agent_words(order: CreateOrder, *, state: str, gpus: str = "auto") -> list[str]:
    """Return the arguments of `holdfast` that start the machine's agent.

    The join token is not among them, because other users of a machine can read a process's
    arguments. gpus: "auto" lets the agent ask the drivers, a number declares so many.
    """
    words = ["agent", "--join", order.env[URL], "--state", state]
    words += ["--name", order.host_name or order.name]
    words += ["--pool", order.pool, "--slots", str(order.offer.cpu_slots), "--gpus", gpus]
    if order.env.get(QUEUES):
        words += ["--queues", order.env[QUEUES]]
    for label in order.env.get(LABELS, "").split(","):
        words += ["--label", label] if label else []
    return words


def hide(text: str, *secrets: str) -> str:
    """Return a text for a person without these secrets. Values too short to be secrets stay."""
    for secret in secrets:
        if len(secret) >= 8:
            text = text.replace(secret, "[hidden]")
    return text
