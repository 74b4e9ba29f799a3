"""Prompts are computed by one server, answers by another: python examples/prefill_decode_proxy.py PREFILL DECODE PORT, as in

minivllm serve MODEL --port 8001 --kv-transfer-config '{"kv_connector": "SharedMemoryConnector", "kv_role": "kv_producer"}' &
minivllm serve MODEL --port 8002 --kv-transfer-config '{"kv_connector": "SharedMemoryConnector", "kv_role": "kv_consumer"}' &
python examples/prefill_decode_proxy.py localhost:8001 localhost:8002 8000
"""

import json
import sys
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def ask(address: str, path: str, body: dict) -> HTTPResponse:
    connection = HTTPConnection(address)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


class Proxy(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        only_prompt = {"max_tokens": 1, "n": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        request = {name: value for name, value in body.items() if name not in ("max_completion_tokens", "stream_options")}
        prefilled = json.loads(ask(sys.argv[1], self.path, {**request, **only_prompt}).read())
        # Without them (an error, a short prompt) the other server does it all.
        reply = ask(sys.argv[2], self.path, {**body, "kv_transfer_params": prefilled.get("kv_transfer_params")})
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.headers["Content-Type"])
        self.end_headers()
        while part := reply.read1(65536):
            self.wfile.write(part)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Proxy).serve_forever()
