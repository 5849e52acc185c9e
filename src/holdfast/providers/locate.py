"""Open a provider by its kind. Each module is imported on first use, because some import libraries
of their own."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.core.fleet.instances import Offer
from holdfast.errors import ValidationError
from holdfast.providers.config import ProviderConfig, check_installation, overlay, read_config
from holdfast.providers.interface import Provider
from holdfast.version import name_install

Parts = tuple[type[ProviderConfig], Callable[[Any, str], Provider]]


def _load_local() -> Parts:
    from holdfast.providers.local import LocalConfig, LocalProvider

    return LocalConfig, LocalProvider


def _load_command() -> Parts:
    from holdfast.providers.command import CommandConfig, CommandProvider

    return CommandConfig, CommandProvider


def _load_ssh() -> Parts:
    from holdfast.providers.ssh import SshConfig, SshProvider

    return SshConfig, SshProvider


def _load_runpod() -> Parts:
    from holdfast.providers.runpod import RunpodConfig, RunpodProvider

    return RunpodConfig, RunpodProvider


def _load_slurm() -> Parts:
    from holdfast.providers.slurm import SlurmConfig, SlurmProvider

    return SlurmConfig, SlurmProvider


def _load_kubernetes() -> Parts:
    try:
        from holdfast.providers.kubernetes import KubernetesConfig, KubernetesProvider
    except ModuleNotFoundError as error:
        raise ValidationError(
            f"the provider 'kubernetes' needs {error.name}: {name_install('kubernetes')}",
            field="provider",
        ) from error
    return KubernetesConfig, KubernetesProvider


_KINDS: dict[str, Callable[[], Parts]] = {
    "local": _load_local,
    "command": _load_command,
    "ssh": _load_ssh,
    "runpod": _load_runpod,
    "slurm": _load_slurm,
    "kubernetes": _load_kubernetes,
}
KINDS = tuple(_KINDS)


def open_provider(kind: str, config: Mapping[str, Any], installation: str) -> Provider:
    """Return the provider that a pool's `provider` and `config` name.

    installation: the id of this Holdfast, which every machine carries.

    Raises:
        ValidationError: the kind or a key of the config is unknown, or a value does not fit.
    """
    shape, make = _load(kind)
    return make(read_config(kind, config, shape), check_installation(installation))


def check_config(kind: str, config: Mapping[str, Any], offers: Iterable[Offer] = ()) -> None:
    """Check a pool's config, and what its offers add to it, without a call to the provider.

    Raises:
        ValidationError: as `open_provider`.
    """
    shape, _ = _load(kind)
    pool_config = read_config(kind, config, shape)
    for offer in offers:
        overlay(kind, pool_config, offer)


def _load(kind: str) -> Parts:
    if kind not in _KINDS:
        raise ValidationError(
            f"there is no provider {kind!r}; use one of {', '.join(KINDS)}", field="provider"
        )
    return _KINDS[kind]()
