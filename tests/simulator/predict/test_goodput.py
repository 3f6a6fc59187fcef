"""Checkpoint intervals and long runs with failures: closed forms, a search, and the run gone through event by event."""

import math
import random

import pytest

from course_lib.chapters.states import Arrow, plot_states
from simulator.predict.checkpoint_interval import lost_share, useful_share, young
from simulator.predict.goodput import LLAMA3, simulate_run

HOUR = 3600.0


def best_by_search(loss):
    return min((10 * 1.002**i for i in range(5000)), key=loss)


def test_young_is_the_minimum_of_the_first_order_loss():
    found = best_by_search(lambda interval: lost_share(interval, 30, 300, 3 * HOUR))
    assert young(30, 3 * HOUR) == pytest.approx(found, rel=2e-3)
    assert young(30, 3 * HOUR) == pytest.approx(805, abs=0.5)  # the root of 2 × 30 × 10,800, by hand


def test_the_first_order_loss_is_that_of_the_exact_share_while_failures_are_rare():
    for interval in (300.0, 3000.0):
        exact = 1 - useful_share(interval, 20, 100, 1e7)
        assert lost_share(interval, 20, 100, 1e7) == pytest.approx(exact, rel=0.08)


def test_a_share_that_is_too_small_for_a_float_is_zero():
    assert useful_share(1e9, 1, 1, 1.0) == 0.0


@pytest.mark.parametrize(
    ("interval", "cost", "restart"), [(1200, 60, 900), (300, 5, 30), (5000, 600, 60), (800, 0, 0)]
)
def test_long_simulated_runs_come_to_the_exact_share(interval, cost, restart):
    run = simulate_run(6000, 3 * HOUR, interval, cost, restart, seed=1)
    assert run.goodput == pytest.approx(useful_share(interval, cost, restart, 3 * HOUR), rel=0.015)


@pytest.mark.parametrize("behind", [0.0, 40.0, 900.0])
def test_the_seconds_of_a_run_are_all_accounted_for(behind):
    run = simulate_run(54, LLAMA3.mtbf, 700, 25, 200, seed=3, behind=behind)
    assert run.kept + run.lost + run.saving + run.restarting == pytest.approx(54 * 86400)
    assert run.failures > 300


def test_a_run_is_the_one_that_is_gone_through_second_by_second():
    """One second after the other, and every state by name: another program for the same thing."""
    mtbf, interval, cost, restart, behind = 5000.0, 400, 30, 100, 50
    run = simulate_run(2, mtbf, interval, cost, restart, seed=7, behind=behind)
    draw, times = random.Random(7), []
    while not times or times[-1] < 2 * 86400:
        times.append((times[-1] if times else 0.0) + draw.expovariate(1 / mtbf))
    kept, safe, up, failures = 0, 0, 0, list(times)
    pending: list[tuple[float, int]] = []
    phase_end = None
    for second in range(2 * 86400):
        for done_at, work in list(pending):
            if done_at <= second:
                safe = work
                pending.remove((done_at, work))
        if failures[0] < second + 1 and failures[0] < 2 * 86400:
            failures.pop(0)
            kept, up, pending, phase_end = safe, 0, [], second + restart
            continue
        if phase_end is not None and second < phase_end:
            continue
        phase_end = None
        up += 1
        if up <= interval:
            kept += 1
        elif up == interval + cost:
            pending.append((second + 1 + behind, kept))
            up = 0
    assert run.failures == len(times) - 1
    assert run.kept == pytest.approx(kept, rel=0.02)


def test_llama_3_failed_about_every_three_hours():
    assert LLAMA3.mtbf / HOUR == pytest.approx(3.09, abs=0.01)
    assert LLAMA3.gpu_mtbf == pytest.approx(16384 * LLAMA3.mtbf)
    assert math.isclose(LLAMA3.gpu_mtbf / HOUR, 50677, rel_tol=1e-3)


def test_the_best_interval_loses_less_than_others():
    best = simulate_run(2000, 3 * HOUR, young(60, 3 * HOUR), 60, 300).goodput
    for factor in (1 / 4, 4):
        assert simulate_run(2000, 3 * HOUR, factor * young(60, 3 * HOUR), 60, 300).goodput < best - 0.01


def test_a_picture_of_states_says_its_arrows_and_refuses_unknown_states():
    places = {"open": (0.2, 0.5), "sealed": (0.8, 0.5)}
    picture = plot_states(places, [Arrow("open", "sealed", "time\nis over", (0.5, 0.7))])
    assert picture.alt == "States open, sealed. from open to sealed: time is over."
    with pytest.raises(ValueError, match="names the state 'closed'; choose one of open, sealed"):
        plot_states(places, [Arrow("open", "closed", "", (0.5, 0.5))])
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_states({}, [])
