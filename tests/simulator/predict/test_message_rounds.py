import pytest

from simulator.predict.message_rounds import Event, Message, in_rounds, rendezvous


def send(peer, size=8):
    return Event("send", peer, size)


def receive(peer):
    return Event("receive", peer)


def test_everyone_can_send_and_receive_in_one_round():
    ring = [[send((r + 1) % 3), receive((r - 1) % 3)] for r in range(3)]
    assert in_rounds(ring) == [Message(1, r, (r + 1) % 3, 8) for r in range(3)]


def test_one_receives_one_after_the_other():
    star = [[receive(1), receive(2), send(2, 5)], [send(0, 1)], [send(0, 2), receive(0)]]
    assert in_rounds(star) == [Message(1, 1, 0, 1), Message(2, 2, 0, 2), Message(3, 0, 2, 5)]


def test_what_was_received_comes_before_what_is_sent_on():
    chain = [[send(1)], [receive(0), send(2)], [receive(1)]]
    assert [message.round for message in in_rounds(chain)] == [1, 2]


def test_messages_between_two_ranks_keep_their_order():
    two = [[send(1, 10), send(1, 20)], [receive(0), receive(0)]]
    assert [(message.round, message.size) for message in in_rounds(two)] == [(1, 10), (2, 20)]


def test_a_log_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="rank 0 waits for ever to send, and rank 1 never comes"):
        in_rounds([[send(1)], []])


def test_blocking_sends_around_a_ring_meet_nobody():
    meeting = rendezvous([[("send", (r + 1) % 3), ("receive", (r - 1) % 3)] for r in range(3)])
    assert meeting.rounds == 0
    assert meeting.waiting == {0: ("send", 1), 1: ("send", 2), 2: ("send", 0)}
    assert str(meeting).startswith("stuck after 0 rounds: rank 0 waits to send to 1, rank 1")


def test_one_rank_that_receives_first_is_enough_and_slow():
    ring = [[("send", (r + 1) % 4), ("receive", (r - 1) % 4)] for r in range(4)]
    ring[0].reverse()
    meeting = rendezvous(ring)
    assert (meeting.rounds, meeting.waiting) == (4, {})
    assert str(meeting) == "everyone is done after 4 rounds"


@pytest.mark.parametrize("step", [("sendrecv", 1), ("send", 2), ("receive", -1)])
def test_bad_steps(step):
    with pytest.raises(ValueError, match="a peer from 0 to 1"):
        rendezvous([[step], []])
