"""Sockets lose nothing, whichever side comes first, and leave nothing behind."""

import asyncio
import sys

import pytest
import zmq
import zmq.asyncio

from minivllm.ipc.addresses import new_address
from minivllm.ipc.sockets import bind, connect


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_what_is_sent_before_the_peer_binds_arrives(context):
    address = new_address()
    push = connect(context, zmq.PUSH, address)
    for i in range(5000):  # more than zmq's default high-water mark
        push.send(b"%d" % i, zmq.NOBLOCK)
    pull = bind(context, zmq.PULL, address)
    assert pull.poll(5000)
    assert [int(pull.recv()) for _ in range(5000)] == list(range(5000))


def test_an_asyncio_end_talks_to_a_blocking_end(context):
    async def receive():
        async_context = zmq.asyncio.Context()
        pull = bind(async_context, zmq.PULL, address)
        data = await asyncio.wait_for(pull.recv(), 5)
        async_context.destroy(linger=0)
        return data

    address = new_address()
    connect(context, zmq.PUSH, address).send(b"hello")
    assert asyncio.run(receive()) == b"hello"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_addresses_are_abstract_and_differ():
    addresses = {new_address() for _ in range(100)}
    assert len(addresses) == 100
    assert all(a.startswith("ipc://@minivllm-") for a in addresses)
