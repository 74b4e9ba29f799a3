"""Options: values from text, ranges, and that every declared option is sound."""

import pytest

from minivllm.config import AsyncEngineArgs
from minivllm.config.option import AUTO, Option, parse_size


def make_option(kind: type, **declared: object) -> Option:
    return Option(name="x", type=kind, default=None, help="", optional=False, **declared)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("12k", 12_000),
        ("12K", 12_288),
        ("25.6k", 25_600),
        ("1m", 10**6),
        ("1M", 2**20),
        ("4G", 4 * 2**30),
        ("4GiB", 4 * 2**30),
        ("1Gi", 2**30),
        ("4gib", 4 * 2**30),
        ("4GB", 4 * 10**9),
        ("500MB", 500 * 10**6),
        ("1_000", 1000),
        ("1.5Ki", 1536),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "k", "12x", "1e5", "12 000", "--3", "0x10"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="must be an integer"):
        parse_size(text)


def test_integers() -> None:
    option = make_option(int, low=1, high=10)
    assert option.check("7") == option.check(7) == 7
    for wrong, message in [
        (0, "at least 1, got 0"),
        ("11", "at most 10, got 11"),
        ("-1", "at least 1"),
        (True, "integer"),
        (1.5, "integer"),
    ]:
        with pytest.raises(ValueError, match=message):
            option.check(wrong)


def test_auto() -> None:
    option = make_option(int, low=1, auto=True)
    assert option.check("auto") == option.check(-1) == option.check("-1") == AUTO
    with pytest.raises(ValueError, match="at least 1, got -2"):
        option.check("-2")
    with pytest.raises(ValueError, match="must be an integer"):
        make_option(int).check("auto")


def test_floats() -> None:
    option = make_option(float, above=0, high=1)
    assert option.check("0.5") == 0.5 and option.check(1) == 1.0
    for wrong in (0, "nan", "inf", "x", True, None):
        with pytest.raises(ValueError, match="must be"):
            option.check(wrong)


def test_choices_and_aliases() -> None:
    option = make_option(str, choices=("float16",), aliases={"half": "float16"})
    assert option.check("half") == option.check("float16") == "float16"
    with pytest.raises(ValueError, match="must be one of float16, got 'int3'"):
        option.check("int3")


def test_booleans_objects_and_lists() -> None:
    assert make_option(bool).check("True") is True
    assert make_option(dict).check('{"a": 1}') == {"a": 1}
    assert make_option(tuple).check('["a", "b"]') == make_option(tuple).check(["a", "b"]) == ("a", "b")
    assert make_option(tuple).check("a") == ("a",)
    for kind, wrong in [(bool, "yes"), (bool, 1), (dict, "{a: 1}"), (dict, "[1]"), (tuple, [1]), (tuple, '["a"')]:
        with pytest.raises(ValueError, match="must be"):
            make_option(kind).check(wrong)


def test_every_option_has_help_and_a_default_of_its_own_type() -> None:
    options = AsyncEngineArgs.options()
    assert len(options) > 40
    for option in options.values():
        assert option.help.endswith("."), option.name
        if option.default is None:
            assert option.optional, option.name
        elif option.default != "":
            assert option.check(option.default) == option.default, option.name


def test_names_are_unique_over_all_sections() -> None:
    names = [f.name for section in AsyncEngineArgs.sections for f in section.__dataclass_fields__.values()]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
