"""A grammar waits for the end of the model's thoughts."""

import pytest

from minivllm.core.grammar.reasoning_gate import ReasoningGate


@pytest.fixture
def ids(forms):
    return forms.tokenizer.encode


@pytest.fixture
def gate(forms, ids):
    def make(start: str = "", end: str = "</>") -> ReasoningGate:
        return ReasoningGate(forms.grammar(choice=["one", "two"]), ids(start), ids(end), forms.compiler.mask_without_end)

    return make


def test_anything_but_an_end_until_the_thoughts_end(forms, ids, gate):
    thinking = gate()
    for token in ids("three two </ >"):
        assert forms.follow(thinking, [token]) and forms.tokenizer.eos_token_id not in forms.allowed(thinking)
    assert forms.follow(thinking, ids("</>")) and not thinking.ended
    assert forms.follow(thinking.copy(), ids("three"))  # a copy begins anew
    assert forms.follow(thinking, ids("two")) and thinking.ended


def test_thoughts_may_be_left_out(forms, ids, gate):
    assert forms.follow(without := gate(start="<t>"), ids("one")) and without.ended
    assert not forms.follow(gate(start="<t>"), ids("three"))
    given = gate(start="<t>")
    assert forms.follow(given, ids("<t>")) and forms.follow(given, ids("three") + ids("</>")) and not given.ended
    assert not forms.follow(given, ids("three"))


def test_a_beginning_may_be_both(forms, ids, gate):
    """The first tokens of an answer are those of a thought as well: the next ones decide."""
    both = gate(start="two!")
    assert forms.follow(both, ids("two")) and not both.ended and forms.tokenizer.eos_token_id in forms.allowed(both)
    thought = gate(start="two!")
    assert forms.follow(thought, ids("two!")) and not thought.ended and forms.follow(thought, ids("eight") + ids("</>"))
    assert forms.follow(thought, ids("one")) and thought.ended
