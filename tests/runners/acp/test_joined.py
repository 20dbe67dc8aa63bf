"""Pieces of one message that came together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gofer_runners.acp._joined import joined


def chunk(session: str, kind: str, text: str, message_id: str | None) -> dict[str, Any]:
    update: dict[str, Any] = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    if message_id is not None:
        update["messageId"] = message_id
    return {"method": "session/update", "params": {"sessionId": session, "update": update}}


CHUNK = st.builds(
    chunk,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"]),
    st.sampled_from(["", "x", " y"]),
    st.sampled_from([None, "1", "2"]),
)
OTHER = st.sampled_from(
    [
        {},
        {"id": 1, "result": {}},
        {"method": "session/update"},
        {"method": "session/update", "params": {"update": None}},
        {"method": "session/update", "params": {"update": {"content": "text"}}},
        {"id": 2, **chunk("a", "agent_message_chunk", "x", None)},
        {"method": "other", "params": chunk("a", "agent_message_chunk", "x", None)["params"]},
        chunk("a", "plan", "x", None),
    ]
)


def spread(messages: list[dict[str, Any]]) -> list[Any]:
    """Return what the messages say, a character at a time."""
    found: list[Any] = []
    for message in messages:
        try:
            update = message["params"]["update"]
            text = update["content"]["text"]
            session = message["params"]["sessionId"]
        except (KeyError, TypeError):
            found.append(message)
            continue
        key = (message["method"], "id" in message, session)
        key += (update["sessionUpdate"], update.get("messageId"))
        found += [(*key, character) for character in text or [""]]
    return found


@given(st.lists(st.one_of(CHUNK, OTHER)))
def test_nothing_is_lost_and_nothing_changes_its_place(messages: list[dict[str, Any]]) -> None:
    before = spread(messages)
    assert spread(list(joined(messages))) == before


def test_pieces_of_one_message_become_one() -> None:
    pieces = [chunk("a", "agent_message_chunk", text, "1") for text in "hello"]
    assert list(joined(pieces)) == [chunk("a", "agent_message_chunk", "hello", "1")]
