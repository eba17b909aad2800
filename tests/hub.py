"""A hub with one data set or model on a port of this machine: as much of the Hugging Face hub as a
download needs.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(
    name: str, files: Mapping[str, bytes], gated: bool = False, commit: str = COMMIT
) -> Iterator[str]:
    """The address of a hub with the data set or model `name`. Its branch main is `commit` and holds
    `files`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.respond()

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            self.respond(json.loads(asked)["paths"])

        def respond(self, paths: list[str] | None = None) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            if len(parts) < 3:
                return self.send(404, b"", {})
            api = parts[0] == "api"
            prefix = 2 if api else int(parts[0] == "datasets")  # files of models have none
            owner, repository, *rest = parts[prefix:]
            if f"{owner}/{repository}" != name or (
                len(rest) > 1 and rest[1] not in ("main", commit)
            ):
                return self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
            if gated:
                return self.send(403, b"", {"X-Error-Code": "GatedRepo"})
            path = "/".join(rest[2:])
            if not api and path in files:
                digest = hashlib.sha256(files[path]).hexdigest()
                return self.send(200, files[path], {"ETag": f'"{digest}"', "X-Repo-Commit": commit})
            if not api:
                return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            content = {"id": name, "sha": commit}
            content |= {"siblings": [{"rfilename": file} for file in files]}
            if rest[:1] in (["tree"], ["paths-info"]):
                listed = [f for f in files if f.startswith(path) and (paths is None or f in paths)]
                content = [
                    {"type": "file", "path": file, "size": len(files[file]), "oid": commit}
                    for file in listed
                ]
            self.send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
