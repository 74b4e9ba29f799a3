"""`Clients`: the API processes that a core serves, mostly one. Requests come from any; their outputs go to whose they are."""

import zmq

from minivllm.ipc.addresses import of_client
from minivllm.ipc.codec import encode
from minivllm.ipc.sockets import LINGER_MS, connect
from minivllm.messages.output import EngineDead, EngineReady, TokenOutput, TokenOutputs

Socket = zmq.Socket[bytes]


class Clients:
    """One inbox for all, and a socket to each."""

    def __init__(self, input_address: str, output_address: str):
        """As long as nobody has said how many there are, there is the first one."""
        self._context = zmq.Context()
        self._input_address = input_address
        self._output_address = output_address
        self._outboxes = [connect(self._context, zmq.PUSH, output_address)]
        self._owners: dict[str, int] = {}  # of open requests, if there are several clients

    def expect(self, count: int) -> None:
        for client in range(1, count):
            self._outboxes.append(connect(self._context, zmq.PUSH, of_client(self._output_address, client)))

    def open_inbox(self) -> Socket:
        inbox = connect(self._context, zmq.PULL, self._input_address)
        for client in range(1, len(self._outboxes)):
            inbox.connect(of_client(self._input_address, client))
        return inbox

    def note_added(self, request_ids: list[str], client: int) -> None:
        if len(self._outboxes) > 1:
            self._owners |= dict.fromkeys(request_ids, client)

    def note_aborted(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._owners.pop(request_id, None)

    def deliver(self, batch: TokenOutputs) -> None:
        """All figures go to the first client, whatever else does."""
        if len(self._outboxes) == 1:
            self._outboxes[0].send(encode(batch))
            return
        parts: list[list[TokenOutput]] = [[] for _ in self._outboxes]
        for output in batch.outputs:
            owner = self._owners.get(output.request_id)
            if owner is not None:
                parts[owner].append(output)
                if output.finish_reason is not None:
                    del self._owners[output.request_id]
        for client, part in enumerate(parts):
            if part or client == 0:
                stats = batch.stats if client == 0 else None
                self._outboxes[client].send(encode(TokenOutputs(part, stats, batch.time)))

    def reply(self, reply: bytes, client: int) -> None:
        """`reply`: an encoded `CallReply`."""
        self._outboxes[client].send(reply)

    def tell_all(self, message: EngineReady | EngineDead) -> None:
        for outbox in self._outboxes:
            outbox.send(encode(message))

    def close(self) -> None:
        """What was sent still has a moment to arrive."""
        self._context.destroy(linger=LINGER_MS)
