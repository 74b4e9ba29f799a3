"""Messages through shared memory: any size, to every reader, across sleep, and the end of the writer."""

import os
import threading
import time

import pytest

from minivllm.ipc.shm_ring import RingReader, RingWriter, open_ring

SIZES = [0, 1, 100, 1 << 18, (1 << 18) + 1, 5 << 20, 7]  # less and more than a piece, more than the ring


@pytest.fixture
def make_ring():
    opened = []

    def make(num_readers):
        ring = open_ring(num_readers)
        writer = RingWriter(ring.memory, ring.ropes)
        readers = [RingReader(ring.memory, bell, index, num_readers) for index, bell in enumerate(ring.bells)]
        opened.append((ring, writer))
        return writer, readers

    yield make
    for ring, writer in opened:
        writer.close()
        for descriptor in (ring.memory, *ring.bells):
            os.close(descriptor)


def messages():
    return [bytes([number + 1]) * size for number, size in enumerate(SIZES)]


def test_every_reader_gets_every_message(make_ring):
    writer, readers = make_ring(3)
    found = [[] for _ in readers]

    def read(index):
        for _ in range(len(SIZES)):
            time.sleep(0.002 * index)  # one is slow
            found[index].append(bytes(readers[index].read()))

    threads = [threading.Thread(target=read, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for message in messages():
        writer.write(message)
        time.sleep(0.001)  # long enough to fall asleep
    for thread in threads:
        thread.join(20)
    assert all(each == messages() for each in found)


def test_a_reader_that_sleeps_takes_no_time(make_ring):
    writer, (reader,) = make_ring(1)
    times = []

    def read():
        reader.read()
        times.append(time.thread_time())

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.2)
    writer.write(b"x")
    thread.join(5)
    assert times[0] < 0.05


def test_the_writers_end(make_ring):
    writer, (reader,) = make_ring(1)
    writer.write(b"last")
    writer.close()
    assert reader.read() == b"last"
    with pytest.raises(EOFError):
        reader.read()
