"""Events as Kineto writes them, at times in milliseconds, for traces that a test makes up."""

NCCL = "ncclDevKernel_{}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
    {"pg_name": "1", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [0, 2]},
    {"pg_name": "3", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
]


def span(cat, name, start, end, tid=7, **arguments):
    """One event, from and to a millisecond, in the form that Kineto writes."""
    times = {"ts": 4e12 + start * 1000.0, "dur": (end - start) * 1000.0}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, **times, "args": arguments}


def nccl(kind, start, end, group="mesh_dp", ranks="[0, 1]", size=2):
    """A kernel of NCCL, which says what it serves."""
    about = {"Process Group Description": group, "Process Group Ranks": ranks, "Group size": size}
    return span("kernel", NCCL.format(kind), start, end, tid=20, **about)
