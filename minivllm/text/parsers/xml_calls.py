"""Calls as tags: one around the name, one around each argument, whose text is made into JSON by the tool's schema."""

from collections.abc import Mapping
from dataclasses import dataclass

from minivllm.text.parsers.format import Tools
from minivllm.text.parsers.source import Malformed, Markers, Source, Steps, skip_to_end
from minivllm.text.parsers.tool_args import encode, types_of, value_from_text
from minivllm.text.parsers.writer import EventWriter

NAME_END = "<\n"  # characters that end a name for which no tag is named


@dataclass(frozen=True, kw_only=True)
class XmlCalls:
    """`starts` (name key-and-value* call_end)* `ends`; each pair of strings stands around what it is named after."""

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    name: tuple[str, str] | None  # None: the name follows the start at once
    call_end: str | None  # None: only one call between start and end
    key: tuple[str, str]
    value: tuple[str, str]
    on_lines: bool = False  # each value stands on lines of its own
    marks: tuple[str, ...] = ()
    bare: str = ""

    def read(self, source: Source, writer: EventWriter, tools: Tools, start: str) -> Steps[None]:
        yield from self._read_call(source, writer, tools)
        if self.call_end is not None:
            assert self.name is not None
            while True:
                yield from source.space()
                if not (yield from self._is_next(source, self.name[0])):
                    break
                yield from self._read_call(source, writer, tools)
            yield from skip_to_end(source, writer.text, self.starts, self.ends)

    def _is_next(self, source: Source, text: str) -> Steps[bool]:
        if (yield from source.literal(text)):
            source.at -= len(text)
            return True
        return False

    def _read_call(self, source: Source, writer: EventWriter, tools: Tools) -> Steps[None]:
        name = yield from self._read_name(source)
        source.forget()
        writer.start_call(name)
        schema = tools.get(name, {})
        properties = schema.get("properties")
        num_arguments = 0
        close = self.ends if self.call_end is None else (self.call_end, *self.ends)
        markers = Markers(self.key[0], *close)
        while True:
            # Text between the arguments is none of them.
            found = yield from source.until(markers, lambda text: None)
            if found is None:
                raise Malformed
            if found in close:
                if found in self.ends and self.call_end is not None:
                    source.at -= len(found)  # the call's own end was forgotten
                break
            parts: list[str] = []
            if (yield from source.until(Markers(self.key[1]), parts.append)) is None:
                raise Malformed
            key = "".join(parts).strip()
            if self.value[0]:
                yield from source.space()
                if not (yield from source.literal(self.value[0])):
                    raise Malformed
            writer.arguments(("{" if not num_arguments else ", ") + encode(key).decode() + ": ")
            num_arguments += 1
            yield from self._read_value(source, writer, properties.get(key) if isinstance(properties, Mapping) else None)
        writer.arguments("}" if num_arguments else "{}")
        writer.end_call()
        source.mark()

    def _read_name(self, source: Source) -> Steps[str]:
        if self.name is not None:
            yield from source.space()
            if not (yield from source.literal(self.name[0])):
                raise Malformed
            parts: list[str] = []
            if (yield from source.until(Markers(self.name[1]), parts.append)) is None:
                raise Malformed
            name = "".join(parts).strip()
        else:
            yield from source.space()
            name = ""
            while (char := (yield from source.peek())) not in NAME_END:
                name += char
                source.at += 1
            if not char:
                raise Malformed
        if not name or any(char in "\n<{" for char in name):
            raise Malformed
        return name

    def _read_value(self, source: Source, writer: EventWriter, schema: object) -> Steps[None]:
        """A text is passed on as it comes; other values when they are complete."""
        if self.on_lines and (yield from source.peek()) == "\n":
            source.at += 1
        end = Markers(self.value[1])
        if types_of(schema) != {"string"}:
            parts: list[str] = []
            if (yield from source.until(end, parts.append)) is None:
                raise Malformed
            writer.arguments(value_from_text(self._without_line_end("".join(parts)), schema).decode())
            return
        writer.arguments('"')
        held = ""  # a line break that may stand before the end

        def write(text: str) -> None:
            nonlocal held
            text = held + text
            kept = self._without_line_end(text)
            held = text[len(kept) :]
            writer.arguments(encode(kept).decode()[1:-1])

        if (yield from source.until(end, write)) is None:
            raise Malformed
        writer.arguments('"')

    def _without_line_end(self, text: str) -> str:
        return text.removesuffix("\n") if self.on_lines else text
