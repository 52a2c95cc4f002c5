"""Receives webhooks: `python receiver.py PORT SECRET_FILE`. It does each task once, however often it comes."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from fairq.webhook import BadSignature, verify

port, secrets = int(sys.argv[1]), Path(sys.argv[2]).read_text().split()
done: set[str] = set()  # in a product: a table, written in the transaction of the work


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            id = verify(body, self.headers, secrets)
        except BadSignature:
            self.answer(401)
            return
        if id not in done:
            print("received", id, body.decode(), flush=True)
            done.add(id)
        self.answer(200)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for each request."""


server = HTTPServer(("127.0.0.1", port), Receiver)
print("receives on port", server.server_port, flush=True)
server.serve_forever()
