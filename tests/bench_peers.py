"""Stand-ins for the programs that a benchmark compares with: they answer as those do, at once."""

from __future__ import annotations

import sys
from pathlib import Path

_SERVER = """
import http.server, json, sys

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = body["prompt"]
        assert all(type(token) is int for token in ids)
        self.answer({"timings": {"prompt_n": len(ids), "predicted_n": body["n_predict"]}})

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""

_VLLM = """
import json, subprocess, sys

with open(sys.argv[0] + ".child", "w") as file:  # as vLLM's engine does, it outlives who started it
    file.write(str(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid))
for line in sys.stdin:
    request = json.loads(line)
    if "model" in request:
        assert request["model"]["sliding_window"] == 64
        answer = {"vllm": "stand-in"}
    else:
        count = len(request["prompts"])
        answer = {"wall_s": 0.5, "generated": count * request["max_tokens"]}
    print(json.dumps(answer), flush=True)
"""


def llama_server(path: Path) -> Path:
    """A program that takes llama-server's options and answers its requests."""
    return _program(path, _SERVER)


def vllm_python(path: Path) -> Path:
    """A program that takes the place of a Python with vLLM, whatever script it is given."""
    return _program(path, _VLLM)


def _program(path: Path, source: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)
    return path
