"""Where there is no msgspec, in a browser, the same is read of a trace."""

import pytest

from simulator.trace.files import event, events, plain_event


def test_events_are_the_same(two_ranks, monkeypatch):
    path = two_ranks[1]
    _, *expected = events.read_events(path)
    monkeypatch.setattr(events, "decode", plain_event.decode)
    _, *plain = events.read_events(path)
    for one, right in zip(plain, expected, strict=True):
        assert {name: getattr(one, name) for name in ("ph", "cat", "name", "ts", "dur", "tid", "end")} == {
            name: getattr(right, name) for name in ("ph", "cat", "name", "ts", "dur", "tid", "end")
        }
        assert one.arguments() == right.arguments()


@pytest.mark.parametrize("text", [b"[1]", b'["x"]', b'[{"ph": 1'])
def test_what_is_no_list_of_events_is_refused_by_both(text):
    for decoder in (event, plain_event):
        with pytest.raises((*decoder.BROKEN, ValueError)):
            decoder.decode(text)
