"""A server on this machine that makes a page anew for every request."""

from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from bnpo.files import InputError
from runpage.page import page_of


class PageHandler(BaseHTTPRequestHandler):
    """Answers every request for / with the page of `folders`."""

    def __init__(self, folders: Sequence[Path], *args) -> None:
        self.folders = folders
        super().__init__(*args)

    def do_GET(self) -> None:
        status, kind, text = 404, "plain", "The page is at /"
        if self.path == "/":
            try:
                status, kind, text = 200, "html", page_of(self.folders)
            except InputError as error:
                status, text = 500, f"error: {error}"
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Print nothing: a page of a running run reloads itself twice a minute."""


def serve(folders: Sequence[Path], port: int) -> None:
    """Serve the page of `folders` to this machine until Ctrl-C. Port 0: a free one. Raises
    InputError.
    """
    page_of(folders)  # a wrong folder is an error of this program, not of each request
    try:
        server = HTTPServer(("127.0.0.1", port), partial(PageHandler, folders))
    except (OSError, OverflowError) as error:
        raise InputError(f"--port {port}: {error}. Choose another one, or 0") from error
    with server:
        print(f"http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
