"""Chapter 13: groups of neighbouring ranks."""

import torch.distributed as dist


def group_of(size: int) -> dist.ProcessGroup:
    """This rank's group, where all ranks are cut into groups of ``size`` neighbours."""
    ranks = range(dist.get_world_size())
    groups = [dist.new_group(list(ranks[first : first + size])) for first in ranks[::size]]
    return groups[dist.get_rank() // size]
