"""Settings with their origin, tokens, webhooks, and the browsers that are signed in."""

from __future__ import annotations

from holdfast.web.page import Page, PageRequest, together


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    reader = ask.reader
    config, sign_ins = await together(reader.config(), reader.sign_ins())
    hooks, tokens = [], []
    if ask.may("admin"):
        hooks, tokens = await together(reader.webhooks(), reader.tokens())
    wanted = ask.query.get("q", "").lower()
    values = {
        "settings": [each for each in config if wanted in each.name.lower()],
        "filter": ask.query.get("q", ""),
        "sign_ins": sign_ins,
        "hooks": hooks,
        "tokens": tokens,
    }
    return Page(template="settings.html", title="Settings", values=values)
