"""`Served`: the app around a `FakeEngine` on a socket, for clients that bring their own HTTP."""

import asyncio
import socket
import threading
import time
from typing import Any

import openai
import uvicorn
from fakes import Client, FakeEngine


class Served:
    """The app in uvicorn in a thread; `server` are options of `AsyncEngineArgs`."""

    def __init__(self, engine: FakeEngine, **server: Any):
        self.engine = engine
        self.app = Client(engine, **server).app
        self.server = uvicorn.Server(uvicorn.Config(self.app, lifespan="off", ws="none", log_level="warning"))
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve([listener])))
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join()
