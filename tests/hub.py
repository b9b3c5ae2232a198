"""A Hugging Face hub on the loopback that serves one tiny model, well or badly.

How a repository is served stands in its owner's name: `good/tiny`, `silent/tiny` and so on.
"""

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" * 6 + "c0ff"
STATUS = {"missing": 404, "private": 401, "busy": 429, "broken": 500}
WEIGHTS = "model.safetensors"


class Hub(ThreadingHTTPServer):
    """Serves the files of `folder` as the repository of every owner."""

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
        self.served = Counter()
        """how often each owner's weights were asked for"""
        self.over = threading.Event()
        """set when the hub closes, so that nothing waits on"""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        listing = parts[0] == "api"
        owner, file = (parts[2], "") if listing else (parts[0], parts[-1])
        if owner == "silent" or (owner == "stalls" and file == WEIGHTS and body):
            self.server.over.wait(20)
            self.close_connection = True
        elif owner in STATUS or (owner == "drops" and file == WEIGHTS and body):
            self.send(STATUS.get(owner, 500), b"", {}, body)
        elif listing:
            said = json.dumps(self.listing(owner)).encode()
            self.send(200, said, {"Content-Type": "application/json"}, body)
        elif file not in self.server.files:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, body)
        else:
            self.file(owner, file, body)

    def listing(self, owner: str) -> dict:
        files = self.server.files
        if owner == "pickled":
            files = {name: b for name, b in files.items() if name != WEIGHTS}
        return {
            "id": f"{owner}/tiny",
            "sha": COMMIT,
            "siblings": [
                {
                    "rfilename": name,
                    "size": len(content),
                    "blobId": git_sha1(content),
                    **(
                        {
                            "lfs": {
                                "sha256": digest(name, content),
                                "size": len(content),
                                "pointerSize": 134,
                            }
                        }
                        if name == WEIGHTS
                        else {}
                    ),
                }
                for name, content in files.items()
            ],
        }

    def file(self, owner: str, name: str, body: bool) -> None:
        content = self.server.files[name]
        tag = digest(name, content)
        self.server.served[owner] += body and name == WEIGHTS
        again = self.server.served[owner] > 1
        if name == WEIGHTS and (owner == "flipped" or (owner == "flipped-once" and not again)):
            content = content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:]
        if name == "config.json" and owner == "flipped-config":
            content = content.replace(b"0.02", b"0.03")
        more = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}
        if name == WEIGHTS:
            more |= {"X-Linked-ETag": f'"{tag}"', "X-Linked-Size": str(len(content))}
        slow = owner == "slow" and name == WEIGHTS
        cut = owner == "cut" and name == WEIGHTS
        self.send(200, content, more, body, slow, cut)

    def send(self, status: int, content: bytes, more: dict, body: bool, slow=False, cut=False):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **more}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if not body:
            return
        with contextlib.suppress(OSError):  # the reader may have gone
            if slow:
                step = len(content) // 10
                for first in range(0, len(content), step):
                    self.wfile.write(content[first : first + step])
                    self.server.over.wait(0.3)
            else:
                self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = self.close_connection or cut

    def log_message(self, *_) -> None:
        pass


def digest(name: str, content: bytes) -> str:
    """The hub's digest of a file: SHA-256 of weights, git's SHA-1 of a file that it holds."""
    return hashlib.sha256(content).hexdigest() if name == WEIGHTS else git_sha1(content)


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Hub]:
    """A hub that serves while it is open."""
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        hub.shutdown()
        hub.server_close()
