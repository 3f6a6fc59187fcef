"""What ZeRO and FSDP promise: of which part of the model a rank keeps 1/p, between two steps and at most in one."""

import torch

from course_lib.by_hand import fsdp, zero
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.by_hand.run import with_shards
from course_lib.observe.ledgers.memory import record_memory
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device, launch

RANKS = 2
CONFIG = GPTConfig.tiny(vocab_size=32, max_length=16, num_layers=6, hidden_size=32)
ALL = 4 * CONFIG.parameters  # bytes of the parameters, of their gradients, and of their momentum
UNIT = 4 * (12 * 32**2 + 13 * 32)  # bytes of a block's, which is larger than the root unit


def new_model():
    torch.manual_seed(0)
    return GPT(CONFIG).to(current_device())


def held(train, settings):
    """Of each kind, the bytes after the second step, and the most in it."""
    model, optimizers = new_model(), []

    def sgd(parameters):
        optimizers.append(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        return optimizers[-1]

    tokens = torch.zeros(2, 2, 16, dtype=torch.int64, device=current_device())
    steps = train(model, [tokens, tokens], sgd, cross_entropy, **settings)
    next(steps)
    with record_memory(with_shards(model, optimizers), *optimizers) as memory:
        next(steps)
    end, kinds = memory.at("end"), memory.peak.as_dict()
    return {kind: (getattr(end, kind), max(getattr(h, kind) for h in memory.held)) for kind in kinds}


def on_a_rank():
    return {
        name: held(file.train, settings) for file in (zero, fsdp) for name, settings in file.RUNGS.items()
    }


def test_a_rank_keeps_its_part_of_what_is_sharded():
    slack = 500  # bytes: padding, and tensors of one number
    for rungs in launch(on_a_rank, RANKS):
        for name, kinds in rungs.items():
            whole = name in ("stage 1", "stage 2")
            assert abs(kinds["parameters"][0] - (ALL if whole else ALL / RANKS)) < slack, name
            assert abs(kinds["optimizer_states"][0] - ALL / RANKS) < slack, name
            assert kinds["gradients"][0] == 0, name  # set to None
            if name == "stage 1":
                assert kinds["gradients"][1] > 0.9 * ALL  # the last one may be counted when others have gone
            else:  # its shard, and one unit's before they are reduced
                assert kinds["gradients"][1] < ALL / RANKS + UNIT + slack, name
            if not whole:  # its shard, the root, a block, and with prefetch another
                blocks = 2 if name == "prefetch" else 1
                assert kinds["parameters"][1] < ALL / RANKS + (ALL - 6 * UNIT) + blocks * UNIT + slack, name
