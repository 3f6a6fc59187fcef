"""Schedules beside those of ``torch.distributed.pipelining``. In a file of its own: what it imports takes seconds."""

import torch
import torch.nn.functional as F
from torch.distributed import pipelining

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.microbatches import cut_batch
from course_lib.pipeline.stages import rank_stages
from course_lib.runtime import current_device, launch
from simulator.pipeline.schedules import make_schedule

ROWS, SEQ, VOCABULARY = 8, 6, 20


def gpt():
    torch.manual_seed(0)
    config = GPTConfig.tiny(
        num_layers=8, hidden_size=8, num_heads=2, vocab_size=VOCABULARY, max_length=SEQ, tie_embeddings=False
    )
    return GPT(config).double().to(current_device())


OFFICIAL = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "zb-h1": pipelining.ScheduleInterleavedZeroBubble,  # with one stage on a rank, as chapter 11 says
    "interleaved-1f1b": pipelining.ScheduleInterleaved1F1B,
    "zb-v": pipelining.ScheduleZBVZeroBubble,
    "dualpipe-v": pipelining.ScheduleDualPipeV,
}


def beside_official(mesh):
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(0, VOCABULARY, (2, ROWS, SEQ), generator=generator).to(current_device())
    found = {}
    for name, kind in OFFICIAL.items():
        schedule = make_schedule(name, mesh.size(), ROWS)
        ours, theirs = (rank_stages(gpt(), schedule, mesh) for _ in range(2))
        loss = Pipeline(ours, schedule, mesh).step(cut_batch((inputs, targets), ROWS))
        held = [
            pipelining.PipelineStage(stage, i, schedule.stages, current_device(), group=mesh.get_group())
            for i, stage in theirs.items()
        ]
        alone = name in ("gpipe", "1f1b")
        official = kind(held[0] if alone else held, ROWS, loss_fn=mean_cross_entropy)
        if name == "zb-h1":
            rank = mesh.get_local_rank()
            theirs_in_order = [str(action) for action in official.pipeline_order[rank] if action]
            assert theirs_in_order == [
                f"{s}{kind.replace('B', 'I')}{i}" for kind, s, i in schedule.actions[rank]
            ]
        step = official.step
        losses = []
        last = schedule.stages - 1 in theirs
        step(*[inputs] * (0 in theirs), **({"target": targets, "losses": losses} if last else {}))
        pairs = [
            (a.grad, b.grad)
            for index in ours
            for a, b in zip(ours[index].parameters(), theirs[index].parameters(), strict=True)
        ]
        largest = max(b.abs().max() for _, b in pairs)
        found[name] = (
            max((a - b).abs().max() / largest for a, b in pairs).item(),
            abs(loss.item() - torch.stack(losses).mean().item()) if last else 0.0,
        )
    return found


def mean_cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def test_equals_torch_distributed_pipelining():
    for rank in launch(beside_official, mesh={"pp": 4}):
        for name, (gradients, loss) in rank.items():
            assert gradients < 1e-11, name
            assert loss < 1e-11, name
