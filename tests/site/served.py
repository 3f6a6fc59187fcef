"""The built site behind a local server, and a page of a browser that writes down everything it asks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, Page


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server on a free port that serves a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def watched(browser: Browser, **options) -> Iterator[tuple[Page, list[str]]]:
    """A new page, and a list that grows with what goes wrong on it: missing files, errors, foreign requests."""
    page = browser.new_page(**options)
    wrong: list[str] = []

    def asks(request):
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:")):
            wrong.append(f"{page.url} asks for {request.url}")

    def gets(response):
        if response.status >= 400:
            wrong.append(f"{page.url}: {response.url} gives {response.status}")

    def says(line):
        if line.type == "error" and not line.location["url"].endswith(
            "/favicon.ico"
        ):  # asked for once by the browser
            wrong.append(f"{page.url}: {line.text}")

    page.on("request", asks)
    page.on("response", gets)
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on(
        "console", lambda line: wrong.append(f"{page.url}: {line.text}") if line.type == "error" else None
    )
    yield page, wrong
    page.close()
