"""As much of S3 as the blob store uses: objects, multipart uploads, listings, deletions. Signatures
are not looked at."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Bucket:
    """What is in it, and uploads that are not completed."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.aborted = 0
        self.failing = False
        self.plain = False  # it writes under no condition
        self.lock = threading.Lock()


def make_handler(bucket: Bucket) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle_one(self) -> None:
            url = urlsplit(self.path)
            key, query = (
                unquote(url.path).split("/", 2)[-1],
                parse_qs(url.query, keep_blank_values=True),
            )
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with bucket.lock:
                status, data, headers = (
                    (403, b"", {}) if bucket.failing else self.act(key, query, body)
                )
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

        def act(
            self, key: str, query: dict[str, list[str]], body: bytes
        ) -> tuple[int, bytes, dict[str, str]]:
            upload = query.get("uploadId", [""])[0]
            if self.command == "POST" and "uploads" in query:
                upload = f"u{len(bucket.uploads) + bucket.aborted + 1}"
                bucket.uploads[upload] = {}
                text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                return 200, text.encode(), {}
            if self.command == "PUT" and upload:
                number = int(query["partNumber"][0])
                bucket.uploads[upload][number] = body
                return 200, b"", {"ETag": f'"{number}"'}
            if self.command == "POST" and upload:
                parts = bucket.uploads.pop(upload)
                bucket.objects[key] = b"".join(parts[number] for number in sorted(parts))
                text = (
                    "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
                )
                return 200, text.encode(), {"ETag": '"e"'}
            if self.command == "DELETE" and upload:
                bucket.aborted += 1
                del bucket.uploads[upload]
                return 204, b"", {}
            if self.command == "POST" and "delete" in query:
                names = re.findall(r"<Key>(.*?)</Key>", body.decode())
                for name in names:
                    bucket.objects.pop(name, None)
                done = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
                return 200, f"<DeleteResult>{done}</DeleteResult>".encode(), {}
            if self.command == "PUT":
                if self.headers.get("If-None-Match") == "*" and bucket.plain:
                    return 501, b"<Error><Code>NotImplemented</Code></Error>", {}
                if self.headers.get("If-None-Match") == "*" and key in bucket.objects:
                    return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
                bucket.objects[key] = body
                return 200, b"", {"ETag": '"e"'}
            if self.command == "DELETE":
                bucket.objects.pop(key, None)
                return 204, b"", {}
            if "list-type" in query:
                return 200, self.list(query.get("prefix", [""])[0]), {}
            if key not in bucket.objects:
                return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
            when = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
            return 200, bucket.objects[key], {"ETag": '"e"', "Last-Modified": when}

        def list(self, prefix: str) -> bytes:
            found = "".join(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
                f"<Size>{len(data)}</Size></Contents>"
                for key, data in sorted(bucket.objects.items())
                if key.startswith(prefix)
            )
            return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()

    return Handler


@contextmanager
def serve_bucket(bucket: Bucket) -> Iterator[str]:
    """Serve it on loopback; yields the endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(bucket))
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
