"""The transitions between the blocks of a hybrid layer, and the ranks' shares of it."""

from itertools import product

import pytest

from simulator.inputs.galaxy import (
    BLOCKS,
    WAYS,
    Shares,
    deal_shares,
    placement_of_blocks,
    transitions,
)

NOTHING = ()
AR, RS, AG, SPLIT = ("all-reduce",), ("reduce-scatter",), ("all-gather",), ("split",)
# Written by hand: forward and backward behind each block of a layer that is not the first, and its entrance if it is.
EXPECTED = {
    "tp": {
        "first": (NOTHING, AR),
        "input": (NOTHING, AR),
        "attention": (AR, NOTHING),
        "connection_1": (NOTHING, AR),
        "mlp": (AR, NOTHING),
        "connection_2": (NOTHING, NOTHING),
    },
    "sp": {
        "first": (SPLIT, AG),
        "input": (NOTHING, NOTHING),
        "keys": (AG, RS),
        "attention": (NOTHING, NOTHING),
        "connection_1": (NOTHING, NOTHING),
        "mlp": (NOTHING, NOTHING),
        "connection_2": (AG, SPLIT),
    },
    "galaxy": {
        "first": (SPLIT, AR),
        "input": (AG, RS),
        "attention": (RS, AG),
        "connection_1": (AG, RS),
        "mlp": (RS, AG),
        "connection_2": (AG, SPLIT),
    },
    "galaxy2": {
        "first": (SPLIT, AR),
        "input": (AG, RS),
        "attention": (RS, AG),
        "connection_1": (NOTHING, NOTHING),
        "mlp": (NOTHING, NOTHING),
        "connection_2": (AG, SPLIT),
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_the_transitions_of_the_four_ways(way):
    found = {block: (t.forward, t.backward) for block, t in transitions(way).items()}
    entrance = transitions(way, first=True)["input"]
    assert found | {"first": (entrance.forward, entrance.backward)} == EXPECTED[way]


def test_a_norm_before_its_block_has_the_placement_of_the_connection_that_ends_before_it():
    found = transitions("galaxy", "pre-norm")
    assert found["connection_1"].forward == NOTHING  # norm_2 works on this rank's tokens, too
    assert (found["norm_2"].forward, found["norm_2"].backward) == (AG, RS)


def test_in_every_mix_a_transition_needs_at_most_one_message_each_way():
    for mix in product(*BLOCKS.values()):
        for block, t in transitions(dict(zip(BLOCKS, mix, strict=True))).items():
            assert len(set(t.forward) - {"split"}) <= 1, (mix, block)
            assert len(set(t.backward) - {"split"}) <= 1, (mix, block)


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        ("megatron", "placement must be one of tp, sp, galaxy, galaxy2, not megatron"),
        (WAYS["tp"] | {"attn": "heads"}, "a block of the placement must be one of attention, .*, not attn"),
        (
            WAYS["tp"] | {"mlp": "heads"},
            "the placement of mlp must be one of columns, sequence, whole, not heads",
        ),
        ({"attention": "heads"}, "connection_1 has no placement: choose one of sequence, whole"),
    ],
)
def test_a_wrong_placement_is_refused_in_a_sentence_that_names_it(placement, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        placement_of_blocks(placement)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"heads": [5, 4]}, r"heads must be 2 whole numbers, one a rank, that add up to 8, not \[5, 4\]"),
        ({"heads": [3, 3, 2]}, r"heads must be 2 whole numbers, .*, not \[3, 3, 2\]"),
        ({"columns": [33, -1]}, r"columns must be 2 .* that add up to 32, not \[33, -1\]"),
        ({"sequence": [0, 0]}, r"sequence must be 2 .*, of which one is more than 0, not \[0, 0\]"),
        ({"sequence": "7:1"}, "sequence must be 2 whole numbers, .*, not 7:1"),
        ({"tokens": [1, 1]}, "a share must be one of heads, columns, sequence, not tokens"),
    ],
)
def test_wrong_shares_are_refused_in_a_sentence_that_names_the_key(given, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        deal_shares(2, 8, 32, given)


def test_heads_that_share_keys_stay_together():
    assert deal_shares(3, 8, 32, group=2).heads == (4, 2, 2)
    with pytest.raises(ValueError, match=r"^heads: 2 query heads share .* a multiple of 2, not 5$"):
        deal_shares(2, 8, 32, {"heads": [5, 3]}, group=2)


def test_tokens_are_dealt_in_proportion_and_to_the_token_where_the_shares_are_tokens():
    shares = deal_shares(3, 8, 32, {"sequence": [2, 3, 3]})
    assert shares == Shares((3, 3, 2), (11, 11, 10), (2, 3, 3))
    assert shares.tokens(8) == (2, 3, 3)
    assert shares.tokens(17) == (4, 7, 6)
    assert deal_shares(3, 8, 32).tokens(11) == (4, 4, 3)
    assert deal_shares(3, 8, 32, {"sequence": [1, 0, 1]}).tokens(2) == (1, 0, 1)
    with pytest.raises(ValueError, match=r"^sequence: 3 ranks cannot share 2 tokens: give longer sequences"):
        shares.tokens(2)
