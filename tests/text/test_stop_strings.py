"""Stop strings across any cut of the text."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.text.stop_strings import StopStrings


def run(parts, stops, include=False, search=lambda at: True):
    finder = StopStrings(stops, include)
    text = ""
    for at, part in enumerate(parts):
        text += finder.feed(part, search(at))
        if finder.matched is not None:
            return text, finder.matched
    return text + finder.finish(), None


@pytest.mark.parametrize(
    ("parts", "stops", "text", "matched"),
    [
        ([" Paris", " Paris"], ["aris Par"], " P", "aris Par"),
        ([" exaggerated"] * 2, ["ated exaggerated e", "ated ex"], " exagger", "ated ex"),
        (["zwölf", "🐢b"], ["🐢"], "zwölf", "🐢"),
        (["a", "a", "b"], ["ab"], "a", "ab"),
        (["aab"], ["aab", "ab"], "", "aab"),
        (["xx one ", "two"], ["two", "one"], "xx ", "one"),
        (["no match"], ["nomatch"], "no match", None),
        (["ends with ST"], ["STOP"], "ends with ST", None),
        (["<", "/", "s", ">", "x"], ["</s>"], "", "</s>"),
    ],
)
def test_cases(parts, stops, text, matched):
    assert run(parts, stops) == (text, matched)


def test_stop_string_in_output():
    assert run([" Par", "is"], ["xyz", "aris"], include=True) == (" Paris", "aris")


def test_only_a_possible_beginning_is_held_back():
    finder = StopStrings(["STOP", "\n\n"], False)
    assert finder.feed("hello S") == "hello "
    assert finder.feed("T") == ""
    assert finder.feed("x\n") == "STx"
    assert finder.feed("y") == "\ny"
    assert finder.finish() == ""


def test_a_match_before_the_search_begins_does_not_count():
    assert run(["ab", "ab", "ab"], ["ab"], search=lambda at: at >= 2) == ("abab", "ab")
    assert run(["ab", "ab", "x"], ["ab"], search=lambda at: at >= 2) == ("ababx", None)
    assert run(["xa", "b"], ["ab"], search=lambda at: at >= 1) == ("x", "ab")  # it ends where the search is on


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab\n", max_size=14),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 13)),
    include=st.booleans(),
)
def test_any_cut_gives_the_same(text, stops, cuts, include):
    """Against the definition: the match that ends first, of these the one that begins first."""
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    borders = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    parts = [text[a:b] for a, b in pairwise(borders)]
    end, start, stop = min(ends, default=(0, 0, None))
    expected = (text, None) if stop is None else (text[: end if include else start], stop)
    assert run(parts, stops, include) == expected
