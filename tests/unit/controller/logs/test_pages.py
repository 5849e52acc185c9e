"""A search that reads few chunks finds what a search of all bytes finds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from holdfast.controller.logs import pages
from holdfast.controller.logs.pages import FoundLines, PageReader, plan_pages
from holdfast.controller.logs.pattern import compile_pattern
from holdfast.core.logs.grams import hash_text, make_bloom, may_hold
from holdfast.core.logs.scan import LogPiece, Scanner
from holdfast.core.records import LogStreamRecord
from holdfast.errors import ValidationError
from holdfast.store.postgres.logs.search import LogSpan


def record(rank: int, size: int) -> LogStreamRecord:
    return LogStreamRecord(
        job_id="j", attempt=1, rank=rank, stream="stdout", size=size, kept=size, ended=True
    )


class Chunks:
    """Streams that are cut into chunks, as the store would return them. read: how many chunks were
    read."""

    def __init__(self, streams: Sequence[Sequence[tuple[int, bytes]]]) -> None:
        self.chunks = list(streams)
        self.records = [record(n, 1) for n in range(len(streams))]
        self.read = 0

    def find(self, texts: Sequence[bytes]) -> list[LogSpan]:
        found = []
        for stream, chunks in zip(self.records, self.chunks, strict=True):
            end, before = 0, b""
            for offset, data in chunks:
                known = offset == end
                bloom = make_bloom(before, data) if known else None
                begins = known and (offset == 0 or before.endswith(b"\n"))
                if not texts or any(may_hold(bloom, hash_text(text)) for text in texts):
                    found.append(LogSpan(stream, offset, offset + len(data), begins))
                end, before = offset + len(data), (before if known else b"")[-99:] + data
        return found

    async def read_spans(self, spans: Sequence[LogSpan]) -> list[list[LogPiece]]:
        found = [
            [
                LogPiece(offset, data, None)
                for offset, data in self.chunks[span.stream.rank]
                if offset < span.end and offset + len(data) > span.start
            ]
            for span in spans
        ]
        self.read += sum(map(len, found))
        return found


async def search(chunks: Chunks, pattern: str, context: int = 0, limit: int = 1000) -> FoundLines:
    compiled = compile_pattern(pattern, ignore_case=False, fixed=False)
    reader = PageReader(chunks, compiled.find, context, limit)  # type: ignore[arg-type]
    planned, found = plan_pages(chunks.find(compiled.texts), context), []
    while planned and reader.left > 0:
        done, lines = await reader.read(planned)
        planned, found = planned[done:], found + lines
    found += await reader.finish()
    kept = sum(len(data) for of_stream in chunks.chunks for _, data in of_stream)
    assert reader.read_bytes <= kept, "no byte is counted twice"
    return found


def look_at_all(chunks: Chunks, pattern: str, context: int) -> FoundLines:
    find = compile_pattern(pattern, ignore_case=False, fixed=False).find
    found: FoundLines = []
    for stream, of_stream in zip(chunks.records, chunks.chunks, strict=True):
        scanner = Scanner(find, context)
        lines = scanner.feed([LogPiece(offset, data, None) for offset, data in of_stream])
        found += [(stream, line) for line in lines + scanner.finish()]
    return found


def make_chunks(chance: random.Random, holes: bool) -> Chunks:
    words = [b"loss", b"step", b"needle", b"need", b"le", b"\n", b"\n", b" ", b"\xff"]
    streams = []
    for _ in range(3):
        data = b"".join(chance.choices(words, weights=[9, 9, 1, 1, 1, 4, 4, 9, 1], k=400))
        chunks, at = [], 0
        while at < len(data):
            size = chance.choice([1, 3, 20, 90])
            if not holes or chance.random() > 0.1:
                chunks.append((at, data[at : at + size]))
            at += size
        streams.append(chunks)
    return Chunks(streams)


@pytest.mark.parametrize("seed", range(12))
async def test_reading_few_chunks_finds_what_reading_all_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    chunks = make_chunks(chance, holes=seed % 2 == 1)
    monkeypatch.setattr(pages, "PAGE_BYTES", chance.choice([50, 300, 1 << 20]))
    monkeypatch.setattr(pages, "TURN_SECONDS", chance.choice([0, 10]))
    monkeypatch.setattr(pages, "FIRST_BYTES", chance.choice([1, 7, 4096]))
    for pattern in ("needle", "needle.*step$", "^.?needle|lossneed", "[nl]e{2}dle", "ste*p"):
        for context in (0, 2):
            found = await search(chunks, pattern, context)
            assert found == look_at_all(chunks, pattern, context), (pattern, context)
    assert len(await search(chunks, "loss", limit=3)) == 3


async def test_a_text_reads_its_chunk_and_no_other() -> None:
    lines = [b"step %d loss is low\n" % n for n in range(1000)]
    lines[500] = b"step 500 needle in the hay\n"
    at, of_stream = 0, []
    for line in lines:
        of_stream.append((at, line))
        at += len(line)
    chunks = Chunks([of_stream])
    ((_, line),) = await search(chunks, "needle in")
    assert line.data == lines[500].rstrip()
    assert chunks.read <= 4, "its own, and those behind it that hold its bytes in their blooms"


def test_what_a_pattern_may_not_be() -> None:
    def refuse(pattern: str) -> str:
        with pytest.raises(ValidationError) as refused:
            compile_pattern(pattern, ignore_case=False, fixed=False)
        return refused.value.message

    assert "missing ]" in refuse("a[")
    assert refuse("a(").startswith("query.pattern: missing ): a(; patterns")
    assert "invalid perl operator" in refuse(r"(?=ahead)")
    assert r"\A and \z mean nothing" in refuse(r"x|\Afirst")
    assert "too large" in refuse(r"\pL{90}")
    compile_pattern(r"C:\\Apps", ignore_case=False, fixed=False)
    fixed = compile_pattern(r"a[.*\A", ignore_case=False, fixed=True)
    assert fixed.find(rb"xx a[.*\A yy", 0) == (3, 9)
    assert fixed.texts == [rb"a[.*\a"]


def test_no_match_goes_on_into_another_line() -> None:
    find = compile_pattern(r"a\sb|a[^x]b|^c$", ignore_case=False, fixed=False).find
    assert find(b"a\nb\n", 0) is None
    assert find(b"a\nb\nc\n", 0) == (4, 5)
