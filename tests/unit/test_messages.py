"""Messages between the processes: what they are on the wire, and that their types are worked out in time."""

from __future__ import annotations

import msgspec
import pytest

from shared import wire
from shared.messages import series, settling, sub_queries
from shared.messages.series import FamilyMetadata
from shared.messages.sub_queries import EvaluateBody, EvaluateReply, Remark, Shape, SubQuery, SubQueryReply
from shared.wire import Reply

SUBQUERY = SubQuery("up", "value", 1, 2, 3)
ANSWER = SubQueryReply(Shape("matrix", 4, 5), (Remark("info", "text", 6),), 7, 0.5, 8)


@pytest.mark.parametrize(
    ("message", "columns"),
    [
        (SUBQUERY, ["up", "value", 1, 2, 3, False]),
        (
            EvaluateBody(1, 2, 3, 4, 5, (SUBQUERY,)),
            [1, 2, 3, 4, 5, [["up", "value", 1, 2, 3, False]], "arrays", 0, False, False],
        ),
        (Shape("matrix", 1, 2), ["matrix", 1, 2, [], False, [], 0, False]),
        (Remark("info", "text", None), ["info", "text", None]),
        (
            EvaluateReply((ANSWER,), 9),
            [[[["matrix", 4, 5, [], False, [], 0, False], [["info", "text", 6]], 7, 0.5, 8, 0, True, []]], 9],
        ),
    ],
)
def test_a_query_and_its_answer_are_values_without_names_that_nobody_changes(
    message: msgspec.Struct, columns: list[object]
) -> None:
    packed = wire.pack(message)
    assert msgspec.msgpack.decode(packed) == columns
    assert wire.unpack(packed, type(message)) == message
    with pytest.raises(AttributeError):
        setattr(message, message.__struct_fields__[0], None)


def test_metadata_is_a_value_without_names_that_nobody_changes() -> None:
    fields = FamilyMetadata.__struct_fields__
    message = FamilyMetadata(*("" for _ in fields))
    assert msgspec.msgpack.decode(wire.pack(message)) == ["" for _ in fields]
    with pytest.raises(AttributeError):
        setattr(message, fields[0], "x")


def test_a_listing_without_a_limit_has_all() -> None:
    limited = [
        kind
        for kind in vars(series).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and "limit" in kind.__struct_fields__
    ]
    assert len(limited) == 2
    for kind in limited:
        fields = msgspec.structs.fields(kind)
        assert next(one.default for one in fields if one.name == "limit") == 0


def test_every_type_of_message_is_worked_out_before_threads_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = msgspec.defstruct("Outer", [("a", int)], module="worker.kinds")
    inner = msgspec.defstruct("Inner", [("b", int)], bases=(outer,), module="coordinator.kinds")
    other = msgspec.defstruct("Other", [("a", int)], module="elsewhere.shared")
    below = msgspec.defstruct("Below", [("c", int)], bases=(other,), module="shared")
    seen: list[object] = []
    monkeypatch.setattr(settling.msgspec.json, "Decoder", seen.append)
    settling.settle()
    assert {outer, inner, below, sub_queries.SubQuery} <= set(seen)
    assert other not in seen
    assert all(kind.__module__.partition(".")[0] in settling.ROOMS for kind in seen)  # type: ignore[attr-defined]


def test_a_reply_has_its_warnings_and_errors_and_no_others() -> None:
    reply = Reply(b"body", warnings=["a", "b"], shard_errors={3: "gone"}, timings_ms={"read": 1.5})
    identity, read = wire.decode_reply(wire.encode_reply(b"8 bytes.", reply))
    assert (identity, list(read.warnings), read.shard_errors) == (b"8 bytes.", ["a", "b"], {3: "gone"})
    assert (read.timings_ms, read.error_class, bytes(read.body)) == ({"read": 1.5}, "", b"body")
    _, read = wire.decode_reply(wire.encode_reply(b"8 bytes.", Reply(b"")))
    assert (list(read.warnings), read.shard_errors, read.timings_ms, list(read.frames)) == ([], {}, {}, [])


def test_a_clock_that_cannot_be_named_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> str:
        raise OSError(path)

    assert wire._clock() == wire.CLOCK != 0
    with monkeypatch.context() as patch:
        patch.setattr(wire.os, "readlink", lambda path: "time:[another]")
        assert wire._clock() not in (0, wire.CLOCK)
        patch.setattr(wire.os, "readlink", missing)
        assert wire._clock() == 0
    monkeypatch.setattr(wire, "boot_id", lambda: b"")
    assert wire._clock() == 0
