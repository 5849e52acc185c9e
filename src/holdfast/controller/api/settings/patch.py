"""Reading a change of settings, for the cluster, a queue and a project alike, and their names."""

import msgspec

from holdfast.controller.http.endpoints import ApiCall
from holdfast.core.settings.resolve import SETTINGS, Scope, Value, check_layer
from holdfast.core.spec import Name
from holdfast.errors import ValidationError
from holdfast.wire.api import SettingsPatch


async def read_settings_patch(
    call: ApiCall, level: Scope, *, default: SettingsPatch | None = None
) -> tuple[dict[str, Value], list[str]]:
    """Return the settings to set and the names to unset. default: the patch that stands for an
    absent body. Raises ValidationError for an unknown setting, a setting that `level` does not
    have, a value that a setting cannot take, and a name in both parts."""
    patch = await call.body(SettingsPatch, default=default)
    changes = check_layer(patch.set, level)
    for name in patch.unset:
        if name not in SETTINGS:
            raise ValidationError(
                f"there is no setting {name!r}; `holdfast config` lists them", field=f"unset.{name}"
            )
        if name in patch.set:
            raise ValidationError(f"{name} is both in set and in unset", field="unset")
    return changes, patch.unset


def read_name(call: ApiCall, kind: str) -> str:
    """Return the name in the path of a new queue or project. Raises ValidationError."""
    try:
        return msgspec.convert(call.params["name"], Name)
    except msgspec.ValidationError:
        raise ValidationError(
            f"a {kind}'s name is 1 to 128 letters, digits and ._/-, and starts with a letter or "
            "digit",
            field="name",
        ) from None
