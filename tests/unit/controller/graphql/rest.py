"""REST as a query asks it, for an admin."""

from datetime import UTC, datetime

from holdfast.controller.app import App
from holdfast.controller.runtime.context import Controller
from holdfast.core.records import TokenRecord
from holdfast.web.reader import ApiReader


def make_api(controller: Controller) -> ApiReader:
    token = TokenRecord(id="t", role="admin", name="t", created_at=datetime.now(UTC))
    return ApiReader(App(controller), token)
