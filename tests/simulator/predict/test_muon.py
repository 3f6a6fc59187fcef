"""How long Muon's update takes, where experts are dealt out, too."""

from dataclasses import replace

import pytest

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.muon import mean_muon_traffic, muon_seconds

LINK = Link(0.0, 1e9)
MIXTRAL = replace(MODELS["mixtral-8x7b"], layers=2)
EXPERTS = 2 * 8 * MIXTRAL.expert_parameters()
DENSE = 2 * (MIXTRAL.attention_parameters() + MIXTRAL.router_parameters)


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_owners_of_experts_are_the_ranks_that_have_the_same_ones(ep):
    """Only bytes take time: a rank's share of the matrices travels to their owners, and back."""
    fast = Hardware("bytes", 1e30, 1e12, 1e30, LINK, LINK, launch=0.0)
    plan = Plan(dp=8, ep=ep, zero=1, optimizer="muon")
    sent = mean_muon_traffic(DENSE, 8).sent + mean_muon_traffic(EXPERTS / ep, 8 // ep).sent
    assert muon_seconds(MIXTRAL, plan, fast, 0) == pytest.approx(sent / 1e9, rel=1e-6)
    assert muon_seconds(MIXTRAL, replace(plan, zero=0), fast, 0) < 1e-6  # every rank turns what it has


def test_each_expert_is_turned_once_with_zero_and_by_every_rank_that_has_it_without():
    slow = Hardware("products", 1e6, 1e12, 1e30, Link(0.0, 1e30), Link(0.0, 1e30), launch=0.0)
    seconds = {
        (zero, ep): muon_seconds(MIXTRAL, Plan(dp=8, ep=ep, zero=zero, optimizer="muon"), slow, 0)
        for zero in (0, 1)
        for ep in (1, 8)
    }
    assert seconds[1, 8] == pytest.approx(seconds[1, 1])
    assert seconds[0, 1] == pytest.approx(8 * seconds[1, 1])
    dense = muon_seconds(replace(MIXTRAL, experts=1, experts_per_token=1, ffn=1), Plan(), slow, 0)
    assert seconds[0, 8] - dense == pytest.approx((seconds[0, 1] - dense) / 8, rel=0.01)
