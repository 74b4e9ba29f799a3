"""The order of waiting."""

from fake_worker import make_request

from minivllm.core.kv_cache.manager import SequenceBlocks
from minivllm.core.scheduler.queues import WaitingQueue, fcfs, priority
from minivllm.core.scheduler.request import Request


def waiting(policy, *requests):
    queue = WaitingQueue()
    records = [Request(data=r, order=policy(r), max_length=9, blocks=SequenceBlocks(b""), tokens=[1]) for r in requests]
    for record in records:
        queue.push(record)
    return queue, records


def drain(queue):
    return [queue.pop().data.request_id for _ in range(len(queue))]


def test_first_come_first_served_whatever_the_stamps_say():
    queue, _ = waiting(fcfs, make_request("a", [1], arrival=9.0, priority=5), make_request("b", [1], arrival=1.0))
    assert drain(queue) == ["a", "b"]


def test_a_request_that_comes_back_keeps_its_place():
    queue, (a, *_) = waiting(fcfs, *(make_request(c, [1]) for c in "abc"))
    assert queue.pop() is a
    queue.push(a)
    assert drain(queue) == ["a", "b", "c"]


def test_priority_then_arrival_then_order_of_coming():
    queue, _ = waiting(
        priority,
        make_request("low", [1], priority=1, arrival=0.0),
        make_request("late", [1], arrival=2.0),
        make_request("early", [1], arrival=1.0),
        make_request("early too", [1], arrival=1.0),
        make_request("high", [1], priority=-3, arrival=9.0),
    )
    assert drain(queue) == ["high", "early", "early too", "late", "low"]


def test_removed_requests_are_gone():
    queue, (a, b, c) = waiting(fcfs, *(make_request(c, [1]) for c in "abc"))
    queue.remove(a)
    queue.remove(c)
    assert (len(queue), queue.peek()) == (1, b)
    queue.remove(b)
    assert (len(queue), queue.peek()) == (0, None)
