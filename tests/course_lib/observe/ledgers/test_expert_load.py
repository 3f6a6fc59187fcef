"""Copies of experts: counted in every layer, added up over ranks, and drawn."""

import torch

from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.observe.ledgers.expert_load import busiest, dropped_share, of_all_ranks, record_expert_load


def test_the_copies_of_all_forwards_are_counted_layer_by_layer():
    model = Mixtral(MixtralConfig.tiny(vocab_size=31, num_hidden_layers=2))
    model.model.layers[1].mlp.gate.weight.data.zero_()
    with record_expert_load(model) as told:
        model(torch.randint(31, (3, 5)))
        model(torch.randint(31, (3, 5)))
    model(torch.randint(31, (3, 5)))  # no longer counted
    first, second = told["expert_load"]
    assert sum(first) == 2 * 3 * 5 * 2
    assert sorted(second) == [0, 0, 30, 30], "all are equally probable, and the same two are chosen"


def test_what_is_dropped_is_told_beside_what_is_taken():
    model = Mixtral(MixtralConfig.tiny(vocab_size=31, num_hidden_layers=1, capacity_factor=0.5))
    model.model.layers[0].mlp.gate.weight.data.zero_()
    with record_expert_load(model) as told:
        model(torch.randint(31, (3, 8)))
    assert sorted(*told["expert_load"]) == [0, 0, 6, 6], (
        "of 16 copies of a sequence 2 are half of a fair share"
    )
    assert told["expert_dropped"] == [3 * 16 - 12]
    assert dropped_share([{"pp": 0, **told}] * 2) == 0.75


def test_ranks_of_a_stage_are_added_up_and_stages_stand_in_order():
    told = [(1, [[1, 2]]), (0, [[3, 0], [1, 1]]), (1, [[4, 4]]), (0, [[0, 3], [5, 5]])]
    loads = of_all_ranks([{"pp": pp, "expert_load": load} for pp, load in told])
    assert loads == [[3, 3], [6, 6], [5, 6]]


def test_the_busiest_is_above_the_mean_of_its_layer():
    assert busiest([[2, 2, 2, 2], [1, 3, 0, 0]], 2) == (3.0, 2.0)
