"""One page of a list in OpenAI's form."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from minivllm.errors import ClientError


def page(
    items: list[Any],
    after: str | None,
    limit: int,
    order: str = "desc",
    id_of: Callable[[Any], str] = attrgetter("id"),
) -> dict[str, Any]:
    """`items` are newest first; `order` "asc" turns them round. ClientError if none has the id `after`."""
    if order == "asc":
        items = items[::-1]
    ids = [id_of(item) for item in items]
    if after is not None:
        if after not in ids:
            raise ClientError(f"after: there is no {after[:64]!r} in this list.", param="after")
        start = ids.index(after) + 1
        items, ids = items[start:], ids[start:]
    shown = ids[:limit]
    return {
        "object": "list",
        "data": items[:limit],
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
        "has_more": len(items) > limit,
    }
