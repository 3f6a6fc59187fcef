import time

import torch.distributed as dist

from course_lib.observe.ledgers.links import fastest_seconds, measure_link
from course_lib.runtime import launch


def timed():
    naps = iter([0.2, 0.02, 0.2])
    seconds = fastest_seconds(lambda: time.sleep(next(naps)), repeats=3)
    link = measure_link(1_000_000)
    return seconds, link.latency, link.seconds(1_000_000), dist.get_rank()


def test_the_fastest_run_counts_and_a_large_message_takes_longer_than_a_small_one():
    for rank, (seconds, latency, large, me) in enumerate(launch(timed, 2)):
        assert me == rank
        assert 0.02 <= seconds < 0.2
        assert 0 < latency < large < 5
