"""Settings with their origin, tokens, sign-ins, sessions, webhooks with their deliveries, and notice
targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.client.methods.jobs import JobMethods
from holdfast.client.methods.webhooks import WebhookMethods
from holdfast.core.records import EventRecord, TokenRecord
from holdfast.core.settings.resolve import SETTINGS, Effective, Value
from holdfast.web.page import Page, PageRequest, read_items, together
from holdfast.web.words import write_setting
from holdfast.wire.operations.acts import ActField

SHOWN_DELIVERIES = 100
SHOWN_CHANGES = 500
_GROUPS = {
    "": "Changed from their defaults",
    "cluster": "Of the whole cluster",
    "project": "Of projects and the cluster",
    "queue": "Of queues and the cluster",
    "job": "Of jobs, where their queues or projects may set them too",
}
"""The groups of settings, the one that is of most interest first."""


class SettingLine(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in force, its help, and its last change where that is on record."""

    setting: Effective
    help: str
    change: EventRecord | None
    fields: list[ActField]
    back: Mapping[str, object]

    @property
    def user(self) -> str:
        """Return the user of the last change; empty where that is not on record."""
        return "" if self.change is None else str(self.change.data.get("by", ""))


def make_field(name: str, value: str) -> ActField:
    """Return the field in which a setting is changed, with what it takes."""
    setting = SETTINGS[name]
    words = ("true", "false") if setting.kind == "bool" else setting.words
    units = {
        "seconds": "seconds",
        "causes": "causes",
        "int": "a whole number",
        "number": "a number",
    }
    unit = units.get(setting.kind, "")
    hint = " or ".join(
        filter(None, (", ".join(words) or unit, "off" if setting.may_be_off else ""))
    )
    return ActField(name=f"set.{name}", label=name, value=value, hint=hint)


def list_setting_fields(offered: Sequence[str], own: Mapping[str, Value]) -> list[ActField]:
    """Return fields for the settings that a queue or a project may have: those that are offered, and
    its own ones."""
    names = [*offered, *(name for name in own if name not in offered)]
    return [
        make_field(name, write_setting(own[name]) if name in own else "")
        for name in names
        if name in SETTINGS
    ]


def make_way_back(offered: Sequence[str], own: Mapping[str, Value]) -> dict[str, object]:
    """Return the change that makes the settings of a queue or a project what they are now."""
    return {"set": dict(own), "unset": [name for name in offered if name not in own]}


def list_lines(settings: Sequence[Effective], changes: Sequence[EventRecord]) -> list[SettingLine]:
    """Return the settings with their last changes. changes: events, oldest first."""
    last: dict[str, EventRecord] = {}
    for event in changes:
        for name in (*event.data.get("set", ()), *event.data.get("unset", ())):
            last[name] = event
    lines = []
    for each in settings:
        own = each.source == "cluster"
        back = {"set": {each.name: each.value}} if own else {"unset": [each.name]}
        lines.append(
            SettingLine(
                setting=each,
                help=SETTINGS[each.name].help,
                change=last.get(each.name),
                fields=[make_field(each.name, write_setting(each.value) if own else "")],
                back=back,
            )
        )
    return lines


def is_in_force(token: TokenRecord, now: datetime) -> bool:
    """Return whether a token may still be used."""
    over = token.expires_at is not None and token.expires_at < now
    return not (token.revoked_at or token.used_at or over)


def group_lines(lines: Sequence[SettingLine]) -> dict[str, list[SettingLine]]:
    """Return the settings by where a change of them was made or may be made: first those that are set
    here, then by the most specific thing that may set them."""
    groups: dict[str, list[SettingLine]] = {}
    for title in _GROUPS.values():
        groups[title] = []
    for line in lines:
        changed = line.setting.source != "default"
        groups[_GROUPS["" if changed else SETTINGS[line.setting.name].scope]].append(line)
    return {title: found for title, found in groups.items() if found}


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    reader = ask.reader
    changed = JobMethods.events(reader, kinds=["settings.changed"], tail=SHOWN_CHANGES)
    config, sign_ins, targets, sessions, changes = await together(
        reader.config(),
        reader.sign_ins(),
        reader.notice_targets(),
        reader.sessions(),
        read_items(reader, changed),
    )
    hooks, tokens = [], []
    if ask.may("admin"):
        hooks, tokens = await together(reader.webhooks(), reader.tokens())
    wanted = ask.query.get("q", "").lower()
    found = [each for each in config if wanted in each.name.lower()]
    values = {
        "groups": group_lines(list_lines(found, changes)),
        "filter": ask.query.get("q", ""),
        "sign_ins": sign_ins,
        "hooks": hooks,
        "tokens": [each for each in tokens if is_in_force(each, ask.now)],
        "over_tokens": [each for each in tokens if not is_in_force(each, ask.now)],
        "targets": targets,
        "sessions": sessions,
    }
    follows = ("settings", "signs", "tokens", "webhooks", "sessions")
    return Page(template="settings.html", title="Settings", values=values, follows=follows)


async def show_webhook(ask: PageRequest) -> Page:
    """Make the page of one webhook and its deliveries. Raises NotFound, Forbidden."""
    reader, hook_id = ask.reader, ask.params["hook"]
    state = ask.query.get("state", "")
    call = WebhookMethods.deliveries(
        reader, hook_id, states=[state] if state else (), page_size=SHOWN_DELIVERIES
    )
    hook, deliveries = await together(reader.webhook(hook_id), read_items(reader, call))
    values = {"hook": hook, "deliveries": deliveries, "state": state}
    return Page(
        template="webhook.html",
        title=hook.name or hook.url,
        values=values,
        follows=("webhooks",),
        every=5,
    )
