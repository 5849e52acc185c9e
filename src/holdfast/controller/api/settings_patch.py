"""A change of settings as its body says it: read in one way for the cluster's, a queue's and a
project's."""

from __future__ import annotations

import msgspec

from holdfast.controller.http.endpoints import ApiCall
from holdfast.core.settings.resolve import SETTINGS, Scope, Value, check_layer
from holdfast.errors import ValidationError
from holdfast.wire.api import SettingsPatch

_PATCH = msgspec.json.Decoder(SettingsPatch)


async def read_settings_patch(
    call: ApiCall, level: Scope, *, default: SettingsPatch | None = None
) -> tuple[dict[str, Value], list[str]]:
    """Return what to set and what to unset. `default` stands for an absent body.

    Raises:
        ValidationError: a setting that there is not or that `level` does not have, a value it
        cannot take, a name in both.
    """
    patch = await call.body(_PATCH, default=default)
    changes = check_layer(patch.set, level)
    for name in patch.unset:
        if name not in SETTINGS:
            raise ValidationError(
                f"there is no setting {name!r}; `holdfast config` lists them", field=f"unset.{name}"
            )
        if name in patch.set:
            raise ValidationError(f"{name} is both in set and in unset", field="unset")
    return changes, patch.unset
