"""A server that speaks as much of the S3 protocol as a backup needs, with its objects in memory.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html
"""

from __future__ import annotations

import hashlib
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape

TIME = "2026-11-22T00:00:00.000Z"


class S3Server(ThreadingHTTPServer):
    """`objects`: "bucket/key" → content. `failures`: how many of the next requests are answered with 500. `unsaid`: how
    many of the next objects are put and answered with 500. `asked`: (method, "bucket/key", range) of all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.failures = self.unsaid = 0
        self.asked: list[tuple[str, str, str]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: S3Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def _route(self) -> None:
        target = urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(target.path).strip("/")
        query = dict(urllib.parse.parse_qsl(target.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.asked.append((self.command, key, self.headers.get("Range", "")))
            if self.server.failures:
                self.server.failures -= 1
                return self._answer(500, b"<Error><Code>InternalError</Code></Error>")
            return getattr(self, f"_{self.command.lower()}")(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _route

    def _answer(self, status: int, body: bytes = b"", size: Any = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _get(self, key: str, query: dict[str, str], _: bytes) -> None:
        if "list-type" in query:
            prefix = f"{key}/{query.get('prefix', '')}"
            rows = "".join(
                f"<Contents><Key>{escape(name.partition('/')[2])}</Key><Size>{len(content)}</Size>"
                f"<LastModified>{TIME}</LastModified><ETag>{_tag(content)}</ETag></Contents>"
                for name, content in sorted(self.server.objects.items())
                if name.startswith(prefix)
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            return self._answer(200, text.encode(), Content_Type="application/xml")
        if key not in self.server.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        content = self.server.objects[key]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        described = {"ETag": _tag(content), "Last_Modified": formatdate(usegmt=True)}
        if asked is None:
            return self._answer(200, content, **described)
        first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        described["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[first : last + 1], **described)

    def _head(self, key: str, query: dict[str, str], _: bytes) -> None:
        content = self.server.objects.get(key)
        if content is None:
            return self._answer(404)
        return self._answer(200, size=len(content), ETag=_tag(content), Last_Modified=formatdate(usegmt=True))

    def _put(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "partNumber" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
        elif self.headers.get("If-None-Match") == "*" and key in self.server.objects:
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self.server.objects[key] = body
            if self.server.unsaid:
                self.server.unsaid -= 1
                return self._answer(500, b"<Error><Code>InternalError</Code></Error>")
        return self._answer(200, ETag=_tag(body))

    def _post(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "delete" in query:
            names = re.findall(rb"<Key>([^<]*)</Key>", body)
            for name in names:
                self.server.objects.pop(f"{key}/{name.decode()}", None)
            rows = b"".join(b"<Deleted><Key>%b</Key></Deleted>" % name for name in names)
            return self._answer(200, b"<DeleteResult>%b</DeleteResult>" % rows)
        if "uploads" in query:
            upload = f"upload-{len(self.server.uploads)}"
            self.server.uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return self._answer(200, text.encode())
        parts = self.server.uploads.pop(query["uploadId"])
        self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
        tag = _tag(self.server.objects[key])
        text = f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>"
        return self._answer(200, text.encode())

    def _delete(self, key: str, query: dict[str, str], _: bytes) -> None:
        self.server.objects.pop(key, None)
        return self._answer(204)


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free port, for the duration of a `with` block."""
    server = S3Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
