"""BUNDLE-1: a manifest names places below its folder only."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from holdfast.core.bundles.manifest import (
    FILE,
    FOLDER,
    LINK,
    MAX_ENTRIES,
    PIECE_BYTES,
    WHOLE_BYTES,
    Entry,
    count_pieces,
    decode_manifest,
    encode_manifest,
    list_digests,
)
from holdfast.errors import TooLarge, ValidationError

SHA = b"s" * 32
A = Entry(b"a", FOLDER, 0o755)


def pack(*entries: Entry) -> bytes:
    """A manifest as an attacker writes it: not sorted, not checked."""
    return zlib.compress(msgspec.msgpack.encode([1, list(entries)]))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([Entry(b"../x", FILE, 0o644)], "stays below its folder"),
        ([A, Entry(b"a/../../x", FILE, 0o644)], "stays below its folder"),
        ([Entry(b"/etc/x", FILE, 0o644)], "stays below its folder"),
        ([Entry(b".", FOLDER, 0o755)], "stays below its folder"),
        ([A, Entry(b"a//x", FILE, 0o644)], "stays below its folder"),
        ([Entry(b"x\0y", FILE, 0o644)], "no NUL"),
        ([Entry(b"", FILE, 0o644)], "1 to 4095"),
        ([Entry(b"n" * 256, FILE, 0o644)], "names are short"),
        ([Entry(b"x", FILE, 0o4755)], "other bits"),
        ([Entry(b"out", LINK, target=b"/etc"), Entry(b"out/x", FILE, 0o644)], "no folder"),
        ([Entry(b"f", FILE, 0o644), Entry(b"f/x", FILE, 0o644)], "no folder"),
        ([Entry(b"gone/x", FILE, 0o644)], "no folder"),
        ([A, A], "twice"),
        ([Entry(b"b", FOLDER, 0o755), A], "not in order"),
        ([Entry(b"x", FILE, 0o644, 5)], "do not fit its size"),
        ([Entry(b"x", FILE, 0o644, 0, SHA)], "do not fit its size"),
        ([Entry(b"x", LINK)], "a link leads to"),
        ([Entry(b"x", FILE, 0o644, target=b"y")], "only a link"),
        ([Entry(b"x", FOLDER, 0o755, 5, SHA)], "only a file"),
    ],
)
def test_a_manifest_that_leads_out_of_its_folder_is_refused(
    entries: list[Entry], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        decode_manifest(pack(*entries))


def test_what_is_no_manifest_is_refused() -> None:
    for data in (b"", b"nonsense", zlib.compress(b"nonsense"), zlib.compress(b"\x92\x02\x90")):
        with pytest.raises(ValidationError, match="the manifest cannot be"):
            decode_manifest(data)


def test_a_manifest_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.core.bundles import manifest

    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", 1000)
    with pytest.raises(TooLarge, match="more than 1000 bytes"):
        decode_manifest(zlib.compress(bytes(100_000)))


def test_the_digest_is_that_of_what_stands_in_it() -> None:
    entries = [Entry(b"a/x\xff", FILE, 0o644, 3, SHA), A, Entry(b"l", LINK, target=b"a")]
    digest, data = encode_manifest(entries)
    assert decode_manifest(data) == (digest, sorted(entries, key=lambda e: e.path))
    assert encode_manifest(reversed(entries))[0] == digest
    assert encode_manifest([A])[0] != digest


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, 0), (1, 1), (WHOLE_BYTES, 1), (WHOLE_BYTES + 1, 3), (3 * PIECE_BYTES, 3)],
)
def test_a_large_file_is_kept_as_pieces(size: int, pieces: int) -> None:
    assert count_pieces(size) == pieces
    entry = Entry(b"x", FILE, 0o644, size, b"".join(bytes([n]) * 32 for n in range(pieces)))
    parts = list(entry.list_pieces())
    assert sum(length for _, _, length in parts) == size
    assert [at for _, at, _ in parts] == [n * PIECE_BYTES for n in range(pieces)]
    assert len(list_digests([entry])) == pieces


def test_a_few_bytes_never_become_millions_of_entries() -> None:
    many = MAX_ENTRIES + 1
    raw = b"\x92\x01\xdd" + many.to_bytes(4, "big") + b"\x92\xc4\x01a\x00" * many
    with pytest.raises(ValidationError, match=f"length <= {MAX_ENTRIES}"):
        decode_manifest(zlib.compress(raw))
