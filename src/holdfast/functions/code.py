"""The code that goes along with calls: a folder is sent when its first call is submitted, and the
calls of this process run that code from then on."""

from __future__ import annotations

import os
import threading

import msgspec

from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.values import FunctionSpec
from holdfast.functions.connection import CONNECTION
from holdfast.functions.running import context
from holdfast.wire.calls import APP_CODE

_LOCK = threading.Lock()
_SENT: dict[tuple[str, str, str], CodeRef] = {}


def bring_code(spec: FunctionSpec, folder: str | None) -> FunctionSpec:
    """Return a function with the code of a folder, which is sent where this process has not sent it
    yet. A call that submits calls of its own app hands its own code on, and sends nothing.

    Raises:
        ValidationError: the folder is not sent, as `Client.send_code` says.
    """
    if spec.code is not None:
        return spec
    if context().hosted:
        same = spec.app_name == os.environ.get("HOLDFAST_APP")
        text = os.environ.get(APP_CODE) if same else None
        code = None if text is None else msgspec.json.decode(text, type=CodeRef)
        return msgspec.structs.replace(spec, code=code)
    if folder is None:
        return spec
    client = CONNECTION.client
    key = (client.place.url, os.path.realpath(folder), spec.project)
    with _LOCK:
        if key not in _SENT:
            _SENT[key] = client.send_code(folder, project=spec.project)
        return msgspec.structs.replace(spec, code=_SENT[key])
