"""What tensor and sequence parallelism send and keep, against the simulator's closed forms, to the byte."""

import torch
from torch.autograd.graph import saved_tensors_hooks

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.recompute import apply_recompute
from course_lib.runtime import current_device, launch
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.memory import layer_bytes
from simulator.predict.traffic import calls, ddp_traffic, tensor_parallel_traffic
from simulator.predict.vocabulary_traffic import embedding_traffic, head_traffic, loss_traffic

LAYERS, BATCH, SEQ, HIDDEN, VOCAB = 2, 3, 12, 48, 97
TOKENS = BATCH * SEQ


def gpt(dropout=0.0):
    sizes = {"vocab_size": VOCAB, "max_length": SEQ, "num_layers": LAYERS, "num_heads": 12}
    return GPT(GPTConfig.tiny(**sizes, hidden_size=HIDDEN, dropout=dropout)).to(current_device())


def llama():
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": LAYERS, "intermediate_size": 96, "head_dim": 6}
    config = LlamaConfig.tiny(**sizes, hidden_size=HIDDEN, num_attention_heads=12, num_key_value_heads=1)
    return Llama(config).to(current_device())


def bert():
    sizes = {"vocab_size": VOCAB, "intermediate_size": 96, "num_attention_heads": 12}
    return Bert(BertConfig.tiny(hidden_size=HIDDEN, num_hidden_layers=LAYERS, **sizes)).to(current_device())


def tokens():
    return torch.zeros(BATCH, SEQ, dtype=torch.long, device=current_device())


def sent(model, mesh, sequence_parallel, recompute=False):
    model = apply_tensor_parallel(model, mesh, sequence_parallel=sequence_parallel)
    if recompute:
        apply_recompute(model, "full")
    with record_traffic() as log:
        out = model(tokens())
        if not isinstance(model, Bert):
            out = VocabParallelCrossEntropy(VOCAB, mesh)(out, tokens())
        out.sum().backward()
    return log.traffic


def saved_by_a_block(mesh, sequence_parallel):
    """Bytes that the first block of a GPT saves for backward, and those of its norms' means and deviations."""
    model = apply_tensor_parallel(gpt(), mesh, sequence_parallel=sequence_parallel)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = {}

    def keep(t):
        saved.setdefault(t.untyped_storage().data_ptr(), t)
        return t

    x = model.embedding(tokens())
    with saved_tensors_hooks(keep, lambda t: t):
        y = model.blocks[0](x)
    total = sum(t.untyped_storage().nbytes() for place, t in saved.items() if place not in parameters)
    statistics = 2 * 2 * 4 * x.shape[0] * x.shape[1]  # two norms; a mean and a deviation for each token
    del y
    return total - statistics


def everything(mesh):
    results = {}
    for sp in (False, True):
        results["gpt", sp] = sent(gpt(), mesh, sp)
        results["gpt recomputed", sp] = sent(gpt(dropout=0.1), mesh, sp, recompute=True)
        results["llama", sp] = sent(llama(), mesh, sp)
        results["bert", sp] = sent(bert(), mesh, sp)
        results["saved", sp] = saved_by_a_block(mesh, sp)
    return results


def to_the_byte(traffic):
    """Its rows, with the bytes sent (a mean over the ranks, so not always whole) without the last digits of a float."""
    return [(r.collective, r.group_size, r.calls, r.payload, round(r.sent, 6)) for r in traffic.rows]


def parameters_held(mesh):
    """Parameters of this rank's part of Llama-3-8B, and of a GPT with an uneven vocabulary, without their data."""
    with torch.device("meta"):
        llama_3 = Llama(
            LlamaConfig(128256, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=8192)
        )
        gpt_2 = GPT(GPTConfig())
    return [
        sum(p.numel() for p in apply_tensor_parallel(model, mesh).parameters()) for model in (llama_3, gpt_2)
    ]


def test_the_parameters_of_a_rank_are_as_many_as_the_simulator_says():
    held = launch(parameters_held, mesh={"tp": 2})[0]  # rank 0 holds the longest part of the vocabulary
    for parameters, name in zip(held, ("llama-3-8b", "gpt2"), strict=True):
        assert sum(Plan(tp=2).parameters_of(MODELS[name], 0)) == parameters


def test_traffic_and_saved_bytes_equal_the_closed_forms():
    ranks = 3  # of two, a half of the bytes is sent, and a half is received

    def ends(sp):
        embedding = embedding_traffic(TOKENS, HIDDEN, ranks, 4, sequence_parallel=sp)
        head = head_traffic(TOKENS, HIDDEN, ranks, 4, sequence_parallel=sp)
        return embedding + head + loss_traffic(TOKENS, ranks)

    def layers(sp, recompute=False):
        return tensor_parallel_traffic(
            TOKENS, HIDDEN, ranks, LAYERS, 4, sequence_parallel=sp, recompute=recompute
        )

    def replicated(sizes, sp):
        """With sequence parallelism each rank has a part of the gradient of what is not cut."""
        return ddp_traffic(sizes, ranks) if sp else calls("all-reduce", [], 4, ranks)

    def whole_sequence(sp):
        return calls("all-gather", [TOKENS * HIDDEN] if sp else [], 4, ranks)

    h = HIDDEN
    norms_and_biases = [2 * h, 2 * h, h, h] * LAYERS  # two norms, and two biases of row-parallel layers
    # one head of keys, one of values, on every rank
    kv_heads = ddp_traffic([6 * h] * 2 * LAYERS, ranks)
    for got in launch(everything, mesh={"tp": ranks}):
        for sp in (False, True):
            predicted = {
                "gpt": layers(sp) + ends(sp) + replicated([*norms_and_biases, SEQ * h, 2 * h], sp),
                "gpt recomputed": layers(sp, recompute=True)
                + ends(sp)
                + replicated([*norms_and_biases, SEQ * h, 2 * h], sp),
                "llama": layers(sp) + ends(sp) + kv_heads + replicated([h] * (2 * LAYERS + 1), sp),
                "bert": layers(sp)
                + embedding_traffic(TOKENS, h, ranks, 4, sequence_parallel=sp)
                + whole_sequence(sp)
                + replicated([*norms_and_biases, 64 * h, 2 * h, 2 * h], sp),
            }
            for name, traffic in predicted.items():
                assert to_the_byte(got[name, sp]) == to_the_byte(traffic), (name, sp)
            shape = ModelShape(LAYERS, h, 12, VOCAB, SEQ, dropout=False)
            plan = Plan(
                tp=ranks, sequence_parallel=sp, micro_batch=BATCH, precision="fp32", attention="flash"
            )
            assert got["saved", sp] == layer_bytes(shape, plan), sp
        assert got["saved", True] < got["saved", False]
