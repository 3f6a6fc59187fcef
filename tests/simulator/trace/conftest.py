import gzip
import json

import pytest
from kineto_events import nccl, span


@pytest.fixture
def write(tmp_path):
    def written(name, events, rank=0, groups=(), packed=False, **head):
        about = {"rank": rank, "world_size": 4, "pg_config": list(groups)}
        head = {"schemaVersion": 1, "distributedInfo": about, "baseTimeNanoseconds": 10**18} | head
        end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 4e12}
        text = json.dumps(head)[:-1] + ', "traceEvents": ['
        text += (
            ",\n  ".join(json.dumps(event, indent=4) for event in [*events, end]) + '\n], "traceName": "x"}'
        )
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        return path

    return written


@pytest.fixture
def two_ranks(write):
    """Two GPUs in two steps of 10 ms each: rank 1 comes 2 ms late to every all-reduce, of which 1 ms is hidden."""
    paths = []
    for rank in (0, 1):
        events, late = [], 2 * rank
        for number, begin in ((5, 0), (6, 10)):
            events += [
                span("gpu_user_annotation", f"ProfilerStep#{number}", begin, begin + 10),
                span("user_annotation", f"ProfilerStep#{number}", begin - 3, begin + 6, tid=1),
                span("kernel", "ampere_bf16_gemm", begin, begin + 3 + late),
                nccl("AllReduce", begin + 2 + late, begin + 8),
                span("gpu_user_annotation", "Optimizer.step#AdamW.step", begin + 8, begin + 9),
                span("kernel", "multi_tensor_apply_kernel", begin + 8, begin + 9),
            ]
        paths.append(write(f"rank{rank}.json", events, rank, packed=rank == 1))
    return paths
