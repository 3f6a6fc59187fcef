"""05.4: several microbatches and one synchronisation, by PyTorch's DDP; then one more backward pass."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from course_checks.ddp import gradients, others_samples, samples_seen
from course_checks.on_ranks import count, on_ranks
from torch.nn.parallel import DistributedDataParallel

from course_lib.grading.judge import Fact, record
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic

FACTS = {
    "gradients": Fact("the gradient of {}", "Afterwards every `.grad` is…", tolerance=1e-4, each="rank"),
    "others": Fact("the sequences", "Each rank's model runs on its own samples only.", each="rank"),
    "next": Fact("in the next backward pass, the gradient of {}", "Afterwards `model`…", tolerance=1e-4, each="rank"),
    "sent": Fact("bytes in all-reduces beyond one synchronisation", "A rank sends as…", most=0, beyond=True),
}  # fmt: skip

# sizes: the sequences of each microbatch, by rank
Case = record("sizes", lambda c: f"{count(len(c.sizes))}, {count(len(c.sizes[0]), 'microbatch', 'es')}")
CASES = [*map(Case, [((1, 2), (2, 1)), ((2, 1, 1), (1, 2, 1), (1, 1, 2)), ((2,), (2,)), ((1, 2),)])]


@on_ranks(FACTS, lambda case: len(case.sizes))
def observe(answer, case: Case) -> dict:
    own, seed = case.sizes[dist.get_rank()], case.seed
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = GPT(GPTConfig.tiny(num_layers=2, hidden_size=32, max_length=16, dropout=0.0))
    module.blocks[0].requires_grad_(False)
    draw = torch.Generator().manual_seed(seed + 100 * dist.get_rank())
    texts = [torch.randint(256, (n, 9), generator=draw) for n in own]
    model = DistributedDataParallel(module, bucket_cap_mb=0.05)
    seen = samples_seen(module)
    with record_traffic() as log:
        answer(model, [(text[:, :-1].clone(), text[:, 1:].clone()) for text in texts])
    found = {"gradients": gradients(module.named_parameters()), "others": others_samples(seen, sum(own))}
    model.zero_grad(set_to_none=False)
    F.cross_entropy(model(texts[0][:, :-1]).flatten(0, 1), texts[0][:, 1:].flatten()).backward()
    after = gradients(module.named_parameters())
    return found | {"next": after, "sent": round(log.traffic.of("all-reduce").sent)}
