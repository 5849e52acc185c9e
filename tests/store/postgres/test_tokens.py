"""What every store must do for `store.tokens`."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast.errors import NotFound
from tests.store.conformance.shared import HASH
from tests.store.rig import START, Rig


async def test_tokens(rig: Rig) -> None:
    made = await rig.store.tokens.create_token("t1", "submit", "ci", HASH, None, now=rig.now)
    assert (
        await rig.store.tokens.create_token("t1", "submit", "ci", HASH, None, now=rig.tick(1))
        == made
    )
    assert await rig.store.tokens.find_token(HASH, now=rig.now) == made
    assert await rig.store.tokens.use_join_token(HASH, now=rig.now) is None
    assert await rig.store.tokens.find_token(HASH[::-1], now=rig.now) is None
    await rig.store.tokens.revoke_token("t1", now=rig.now)
    await rig.store.tokens.revoke_token("t1", now=rig.tick(1))
    assert await rig.store.tokens.find_token(HASH, now=rig.now) is None
    (listed,) = await rig.store.tokens.list_tokens()
    assert listed.revoked_at == START + timedelta(seconds=1)
    with pytest.raises(NotFound):
        await rig.store.tokens.revoke_token("t9")
    until = rig.now + timedelta(seconds=10)
    await rig.store.tokens.create_token("t2", "read", "", HASH[::-1], until, now=rig.now)
    assert (
        await rig.store.tokens.find_token(HASH[::-1], now=until - timedelta(seconds=1)) is not None
    )
    assert await rig.store.tokens.find_token(HASH[::-1], now=until) is None
    over = [
        await rig.store.tokens.find_token(secret, also_over=True, now=until)
        for secret in (HASH, HASH[::-1], b"unknown")
    ]
    assert [None if token is None else token.id for token in over] == ["t1", "t2", None]


async def test_a_join_token_is_spent_once_under_a_race(rig: Rig) -> None:
    await rig.store.tokens.create_token("t1", "join", "", HASH, None, now=rig.now)
    used = await asyncio.gather(
        *(rig.store.tokens.use_join_token(HASH, now=rig.now) for _ in range(8))
    )
    assert sum(token is not None for token in used) == 1
    assert await rig.store.tokens.use_join_token(HASH, now=rig.now) is None
