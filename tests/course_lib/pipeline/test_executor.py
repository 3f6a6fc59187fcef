"""Pipelines of every model, however they are cut and trained, against one device; what they cannot do is refused."""

import gc
import os
import signal
import threading
import time
import weakref
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn

from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.recompute import apply_recompute
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.gradient_norm import clip_grad_norm_, grad_norm
from course_lib.pipeline.microbatches import cut_batch, sum_cross_entropy
from course_lib.pipeline.stages import rank_stages, split_model
from course_lib.runtime import RankError, current_device, launch
from course_lib.runtime.mesh import make_mesh
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.schedules import make_schedule
from simulator.predict.traffic import schedule_traffic

SEQ, VOCABULARY, SIZES = 6, 20, [3, 2, 3, 1]
BERT = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
GPT_SETTINGS = {"hidden_size": 8, "num_heads": 2, "vocab_size": VOCABULARY, "max_length": SEQ}
LLAMA = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": VOCABULARY, "num_hidden_layers": 5}


def build(make):
    torch.manual_seed(0)
    return make().double().to(current_device())


def gpt(**changes):
    return build(lambda: GPT(GPTConfig.tiny(**(GPT_SETTINGS | changes))))


def token_data(rows=None, seed=1):
    rows = rows or sum(SIZES)
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(0, VOCABULARY, (2, rows, SEQ), generator=generator)
    targets[0] = -100  # a row without any target
    targets[-1, 1:] = -100
    return tokens.to(current_device()), targets.to(current_device())


def padded_data():
    """Tokens, mask, segments and targets."""
    tokens, targets = token_data()
    lengths = torch.arange(len(tokens), device=tokens.device) % SEQ + 1
    mask = (torch.arange(SEQ, device=tokens.device) < lengths[:, None]).long()
    return tokens, mask, (tokens > 5).long(), targets


def classes():
    tokens, mask, types, _ = padded_data()
    return tokens, mask, types, tokens[:, 0] % 3


def vectors():
    x = torch.randn(sum(SIZES), 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x.to(current_device()), x.flip(0).to(current_device())


def sum_of_squares(output, targets):
    return ((output - targets) ** 2).sum()


def of_hidden(hidden, targets):
    return (hidden[..., 0].sin() * targets).sum()


def both_outputs(outputs, targets):
    hidden, pooled = outputs
    return of_hidden(hidden, targets) + (pooled.sum(-1) * targets[:, 0]).sum()


def sequential():
    return build(
        lambda: nn.Sequential(
            nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Identity(), nn.Linear(8, 8)
        )
    )


class TwoStreams(nn.Module):
    """No chain of modules: two tensors go from layer to layer, and one layer does not use the second."""

    def __init__(self):
        super().__init__()
        self.start = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Bilinear(8, 8, 8) if i != 2 else nn.Linear(8, 8) for i in range(4))

    def forward(self, x):
        state = TwoStreams.begin(self.start, x)
        for layer in self.layers:
            state = TwoStreams.go_on(layer, *state)
        return state[0]

    @staticmethod
    def begin(start, x):
        return start(x), x.tanh()

    @staticmethod
    def go_on(layer, x, y):
        return (layer(x, y), x) if isinstance(layer, nn.Bilinear) else (layer(x), x)


TWO_STREAMS = {
    "start": TwoStreams.begin,
    "layers.*": TwoStreams.go_on,
}


def first(outputs, targets):
    return sum_of_squares(outputs[0], targets)


# name -> model, data, loss, what rank_stages is told besides
MODELS = {
    "gpt, uneven": (lambda: gpt(num_layers=5), token_data, sum_cross_entropy, {"layers": [1, 4]}),
    "bert": (lambda: build(lambda: Bert(BertConfig.tiny(**BERT))), padded_data, of_hidden, {}),
    "bert without a mask": (
        lambda: build(lambda: Bert(BertConfig.tiny(**BERT))),
        token_data,
        of_hidden,
        {},
    ),
    "bert with its pooler": (
        lambda: build(lambda: Bert(BertConfig.tiny(**BERT), pooler=True)),
        padded_data,
        both_outputs,
        {},
    ),
    "classifier": (
        lambda: build(lambda: BertClassifier(Bert(BertConfig.tiny(**BERT), pooler=True), 3)),
        classes,
        sum_cross_entropy,
        {},
    ),
    "llama": (
        lambda: build(lambda: Llama(LlamaConfig.tiny(tie_word_embeddings=True, **LLAMA))),
        token_data,
        sum_cross_entropy,
        {"layers": [3, 2]},
    ),
    "sequential": (sequential, vectors, sum_of_squares, {"layers": [4, 2]}),
    "two streams": (lambda: build(TwoStreams), vectors, first, {"chain": TWO_STREAMS}),
}


def oracle(model, data, loss_fn):
    """The loss and all gradients of one device; each tensor counts where it is, under all its names."""
    *inputs, targets = data
    tokens = max(1, int((targets != -100).sum()))
    outputs = model(*inputs)
    outputs = (outputs,) if isinstance(model, TwoStreams) else outputs
    loss = loss_fn(outputs, targets) / tokens
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}


def difference(pipeline, gradients):
    """The largest difference of this rank's gradients, as a share of the largest gradient of all."""
    largest = max(g.abs().max() for g in gradients.values() if g is not None)
    worst = 0.0
    for name, parameter in pipeline.named_parameters():
        expected = gradients[name]
        if expected is None or parameter.grad is None:
            assert expected is parameter.grad, f"{name}: {parameter.grad}, not {expected}"
        else:
            worst = max(worst, ((parameter.grad - expected).abs().max() / largest).item())
    return worst


def cut(data):
    return list(zip(*(tensor.split(SIZES) for tensor in data), strict=True))


def all_models(mesh):
    found = {}
    for name, (make, data, loss_fn, settings) in MODELS.items():
        model = make()
        loss, gradients = oracle(model, data(), loss_fn)
        for schedule in (make_schedule("1f1b", 2, 4), make_schedule("zb-h1", 2, 4)):
            pipeline = Pipeline(rank_stages(make(), schedule, mesh, **settings), schedule, mesh, loss_fn)
            ours = pipeline.step(cut(data()))
            evaluated = pipeline.evaluate(cut(data()))
            found[name, schedule.name] = (
                0.0 if ours is None else abs(ours.item() - loss) + abs(evaluated.item() - loss),
                difference(pipeline, gradients),
            )
    return found


def test_every_model_equals_one_device():
    """Models cut anywhere, with padding, several tensors at a border, and rows without targets."""
    for found in launch(all_models, mesh={"pp": 2}):
        for case, (loss, gradients) in found.items():
            assert loss < 1e-9, case
            assert gradients < 1e-11, case


# ---- training -------------------------------------------------------------------------------------------


def accumulation(mesh):
    """Three calls, the gradients of tied embeddings exchanged once."""
    model, schedule = gpt(num_layers=2), make_schedule("1f1b", 2, 3)
    pipeline = Pipeline(rank_stages(gpt(num_layers=2), schedule, mesh), schedule, mesh)
    calls = [token_data(rows, seed) for seed, rows in enumerate((5, 3, 4))]
    tokens = sum(int((targets != -100).sum()) for _, targets in calls)
    loss = sum(sum_cross_entropy(model(inputs), targets) for inputs, targets in calls) / tokens
    loss.backward()
    for batch in calls[:-1]:
        with pipeline.no_sync(), record_traffic() as log:
            pipeline.step(cut_batch(batch, 3), tokens=tokens)
    quiet = log.traffic.sent
    with record_traffic() as log:
        pipeline.step(cut_batch(calls[-1], 3), tokens=tokens)
    expected = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}
    unclipped = difference(pipeline, expected)
    # Without no_sync each call exchanges what it added, and nothing twice.
    again = Pipeline(rank_stages(gpt(num_layers=2), schedule, mesh), schedule, mesh)
    for number, batch in enumerate(calls):
        again.synchronise = number != 1
        again.step(cut_batch(batch, 3), tokens=tokens)
    twice = difference(again, expected)
    # The steps have other shapes; the tied gradient is the one message whose size does not depend on them.
    tied = VOCABULARY * 8 * 8
    messages = [event.payload for event in log.events if event.payload == tied]
    norm = grad_norm(pipeline).item()
    whole = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
    torch_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    clip_grad_norm_(pipeline, 0.01)
    clipped = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}
    assert torch_norm > 0.01
    assert quiet > 0
    return unclipped, twice, abs(norm / whole - 1), difference(pipeline, clipped), len(messages)


def frozen(mesh):
    """Nothing that the first stage has is trained: no gradient is sent to it."""
    found = []
    for frozen_parts in (
        ("embedding", "blocks.0", "blocks.1"),
        ("embedding",),
        ("blocks.2", "blocks.3", "norm", "head"),
    ):
        for name in ("1f1b", "zb-h1"):
            models = [gpt(num_layers=4, tie_embeddings=False) for _ in range(2)]
            for model in models:
                for part in frozen_parts:
                    model.get_submodule(part).requires_grad_(False)
            data = token_data()
            loss, gradients = oracle(models[0], data, sum_cross_entropy)
            schedule = make_schedule(name, 2, 4)
            pipeline = Pipeline(rank_stages(models[1], schedule, mesh), schedule, mesh)
            with record_traffic() as log:
                ours = pipeline.step(cut(data))
            assert ours is None or abs(ours.item() - loss) < 1e-9
            found.append((difference(pipeline, gradients), log.traffic.calls))
    return found


def recomputed(mesh):
    found = []
    for name in ("1f1b", "zb-h1", "zb-v"):
        schedule = make_schedule(name, 2, 4)
        _, gradients = oracle(gpt(num_layers=4), token_data(), sum_cross_entropy)
        stages = rank_stages(gpt(num_layers=4), schedule, mesh)
        for stage in stages.values():
            apply_recompute(stage, "full")
        pipeline = Pipeline(stages, schedule, mesh)
        pipeline.step(cut(token_data()))
        found.append(difference(pipeline, gradients))
    return found


def with_dropout(mesh):
    """Seeds for each stage and microbatch, set through ``around``: the same masks as on one device."""

    def seed(stage, i):
        torch.manual_seed(100 * stage + i)

    @contextmanager
    def around(action, last):
        seen.append((action, last))
        if action.kind == "F":
            seed(action.stage, action.microbatch)
        yield

    data, stages = token_data(), split_model(gpt(num_layers=4, dropout=0.3), 4)
    tokens = int((data[1] != -100).sum())
    for i, (inputs, targets) in enumerate(cut(data)):
        x = inputs
        for s, stage in enumerate(stages):
            seed(s, i)
            x = stage(x)
        (sum_cross_entropy(x, targets) / tokens).backward()
    expected = {n: p.grad for stage in stages for n, p in stage.named_parameters()}
    found = []
    for name in ("interleaved-1f1b", "zb-v"):
        seen = []
        schedule = make_schedule(name, 2, 4, 2)
        pipeline = Pipeline(
            rank_stages(gpt(num_layers=4, dropout=0.3), schedule, mesh), schedule, mesh, around=around
        )
        pipeline.step(cut(data))
        assert [action for action, _ in seen] == list(schedule.actions[mesh.get_local_rank()])
        lasts = {action.stage: at for at, (action, last) in enumerate(seen) if last}
        for stage, at in lasts.items():
            assert not any(a.stage == stage and a.kind != "F" for a, _ in seen[at + 1 :])
        assert sorted(lasts) == schedule.stages_of(mesh.get_local_rank())
        found.append(difference(pipeline, expected))
    return found


def saved_and_loaded(mesh):
    """The ranks' states are parts of the whole model's."""
    schedule = make_schedule("zb-v", 2, 4)
    model = gpt(num_layers=4)
    pipeline = Pipeline(rank_stages(gpt(num_layers=4), schedule, mesh), schedule, mesh)
    for parameter in pipeline.parameters():
        parameter.data.zero_()
    pipeline.load_state_dict(model.state_dict())
    for name, tensor in pipeline.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name])
    name, _ = next(pipeline.named_parameters())
    with pytest.raises(ValueError, match=rf"the state has no {name}"):
        pipeline.load_state_dict({k: v for k, v in model.state_dict().items() if k != name})
    return sorted(pipeline.state_dict())


def meta_elsewhere(mesh):
    """A rank without the first or last stage needs the shapes of the data only."""
    schedule = make_schedule("1f1b", 2, 4)
    _, gradients = oracle(gpt(num_layers=4), token_data(), sum_cross_entropy)
    pipeline = Pipeline(rank_stages(gpt(num_layers=4), schedule, mesh), schedule, mesh)
    inputs, targets = token_data()
    if mesh.get_local_rank() == 0:
        targets = targets.to("meta")
    else:
        inputs = inputs.to("meta")
    pipeline.step(cut((inputs, targets)))
    return difference(pipeline, gradients)


def memory(mesh):
    """Between F and B a rank has what autograd saved; of the outputs of a stage nothing is kept."""
    schedule = make_schedule("1f1b", 2, 4)
    kept = []

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, dtype=torch.float64))

        def forward(self, x):
            y = x * self.weight
            kept.append(weakref.ref(y))
            return y

    @contextmanager
    def around(action, last):
        yield
        if action.kind == "F" and action.stage == 0 and action.microbatch == 1:
            gc.collect()
            until = time.monotonic() + 60  # rank 1 may be late in receiving it
            while kept[0]() is not None and time.monotonic() < until:
                time.sleep(0.001)
            alive.append(kept[0]() is not None)

    alive = []
    stages = {mesh.get_local_rank(): Last()}
    pipeline = Pipeline(stages, schedule, mesh, sum_of_squares, around=around)
    pipeline.step(cut(vectors()))
    x = weakref.ref(pipeline)
    return alive, x() is not None


def tied_on_one_rank(mesh):
    """In a V rank 0 has the first and the last stage: their tied weight is one, and nothing is sent for it."""
    schedule = make_schedule("zb-v", 2, 4)
    pipeline = Pipeline(rank_stages(gpt(num_layers=4), schedule, mesh), schedule, mesh)
    pipeline.step(cut(token_data()))
    with record_traffic() as log:
        pipeline.step(cut(token_data()))
    elements = sum(SIZES) * SEQ * 8
    expected = schedule_traffic(schedule, 1, mesh.get_local_rank(), 1).calls / 4 * elements * 8
    return log.traffic.sent, expected


def everything(mesh):
    cases = (
        accumulation,
        frozen,
        recomputed,
        with_dropout,
        saved_and_loaded,
        meta_elsewhere,
        memory,
        tied_on_one_rank,
    )
    return {case.__name__: case(mesh) for case in cases}


@pytest.fixture(scope="module")
def trained():
    return launch(everything, mesh={"pp": 2})


def test_accumulation_over_calls_and_the_norm_of_the_whole(trained):
    for rank in trained:
        *differences, messages = rank["accumulation"]
        assert max(differences) < 1e-11
        assert messages == 1


def test_frozen_parts(trained):
    for rank in trained:
        assert max(difference for difference, _ in rank["frozen"]) < 1e-11
    backward = [trained[1]["frozen"][at][1] for at in (0, 1)]
    assert backward == [0, 0], "no gradient is sent to a stage that needs none"


def test_recomputation_and_dropout_inside_stages(trained):
    for rank in trained:
        assert max(rank["recomputed"]) < 1e-11
        assert max(rank["with_dropout"]) < 1e-11


def test_states_of_ranks_are_parts_of_the_models(trained):
    names = {name for rank in trained for name in rank["saved_and_loaded"]}
    assert names == set(gpt(num_layers=4).state_dict())


def test_shapes_are_enough_where_data_is_not_read(trained):
    assert max(rank["meta_elsewhere"] for rank in trained) < 1e-11


def test_outputs_are_freed_once_sent(trained):
    assert trained[0]["memory"][0] == [False]


def test_traffic_of_a_v_with_tied_embeddings(trained):
    for rank in trained:
        measured, expected = rank["tied_on_one_rank"]
        assert measured == expected


# ---- what is refused --------------------------------------------------------------------------------------


def refused(mesh):
    """The sentence of each thing that cannot be done. No rank has sent anything when it is refused."""
    schedule = make_schedule("1f1b", 2, 4)
    rank = mesh.get_local_rank()
    stages = rank_stages(gpt(num_layers=4), schedule, mesh)
    pipeline = Pipeline(stages, schedule, mesh)

    def incomplete():
        first, second = schedule.actions
        return Schedule("mine", 2, 4, 1, (first[:-1], second))

    def crossed():
        first = (Action("F", 0, 0), Action("BW", 0, 0), Action("F", 0, 1), Action("BW", 0, 1))
        second = (Action("F", 1, 1), Action("F", 1, 0), Action("BW", 1, 0), Action("BW", 1, 1))
        return Schedule("mine", 2, 2, 1, (first, second))

    attempts = {
        "ranks": lambda: rank_stages(gpt(num_layers=4), make_schedule("1f1b", 4, 4), mesh),
        "ranks of the pipeline": lambda: Pipeline(stages, make_schedule("1f1b", 4, 4), mesh),
        "stages": lambda: Pipeline(stages, make_schedule("zb-v", 2, 4), mesh),
        "cut": lambda: Pipeline({rank: split_model(gpt(num_layers=4), 4)[rank]}, schedule, mesh),
        "microbatches": lambda: pipeline.step(cut_batch(token_data(), 3)),
        "mean": lambda: Pipeline(stages, schedule, mesh, nn.CrossEntropyLoss()),
        "rows": lambda: cut_batch(token_data(3), 4),
        "incomplete": lambda: Pipeline(stages, incomplete(), mesh),
        "deadlock": lambda: Pipeline(stages, crossed(), mesh),
    }
    sentences = {}
    for name, attempt in attempts.items():
        with pytest.raises(ValueError) as caught:
            attempt()
        sentences[name] = str(caught.value)
    return sentences


def test_what_cannot_run_is_refused_in_a_sentence():
    sentences = launch(refused, mesh={"pp": 2})[0]
    assert sentences["ranks"] == "the schedule is for 4 ranks, but the mesh has 2"
    assert sentences["ranks of the pipeline"] == sentences["ranks"]
    assert sentences["stages"] == "under zb-v rank 0 holds the stages [0, 3], not [0]"
    assert sentences["cut"] == "the model is cut into 4 stages, but 1f1b has 2"
    assert sentences["microbatches"] == "the schedule is for 4 microbatches, not 3"
    assert sentences["rows"] == "3 rows cannot be cut into 4 microbatches"
    assert sentences["mean"] == (
        "the loss must be a sum over the tokens: make it with reduction=\"sum\", not 'mean'"
    )
    assert sentences["incomplete"] == "rank 0 never does B3 of stage 0"
    assert "mine never ends: rank 0 cannot do B0 of stage 0" in sentences["deadlock"]


def misfit(mesh):
    """The second stage takes twice as many numbers as the first returns."""
    schedule = make_schedule("1f1b", 2, 4)
    stage = nn.Linear(8, 8) if mesh.get_local_rank() == 0 else nn.Linear(16, 8)
    Pipeline({mesh.get_local_rank(): stage.double()}, schedule, mesh, sum_of_squares).step(cut(vectors()))


def test_a_stage_that_does_not_take_what_it_gets():
    with pytest.raises(RankError, match=r"F0, whose input is float64\[3, 8\]") as caught:
        launch(misfit, mesh={"pp": 2})
    assert caught.value.rank == 1


def killed(mesh):
    schedule = make_schedule("1f1b", 2, 4)

    @contextmanager
    def around(action, last):
        if mesh.get_local_rank() == 1 and action.kind == "BW":
            os.kill(os.getpid(), signal.SIGKILL)
        yield

    stages = rank_stages(gpt(num_layers=2), schedule, mesh)
    Pipeline(stages, schedule, mesh, around=around).step(cut(token_data()))


def test_a_rank_that_dies_ends_the_others():
    with pytest.raises(RankError) as caught:
        launch(killed, mesh={"pp": 2})
    assert caught.value.rank == 1


def absent(mesh):
    if mesh.get_local_rank() == 0:
        schedule = make_schedule("1f1b", 2, 4)
        Pipeline(rank_stages(gpt(num_layers=2), schedule, mesh), schedule, mesh).step(cut(token_data()))
    else:
        receive = torch.empty(1)
        torch.distributed.recv(receive, src=0, tag=7)


def test_a_rank_that_never_sends_is_named():
    with pytest.raises(RankError, match=r"rank 0.*receive.*rank 1"):
        launch(absent, mesh={"pp": 2}, timeout=60)


# ---- a forward and a backward at once -----------------------------------------------------------------------

PAIRED = make_schedule("dualpipe-v", 2, 6)


def pipeline_of_pairs(together):
    mesh, pairs = make_mesh({"pp": 2}), {}
    stages = rank_stages(gpt(num_layers=4), PAIRED, mesh)
    pipeline = Pipeline(stages, PAIRED, mesh, together=together)
    for at in PAIRED.overlapped[mesh.get_local_rank()]:
        forward, backward = pipeline.actions[at : at + 2]
        pairs |= {forward: backward, backward: forward}
    return pipeline, pairs


def meet(together):
    """Each of a pair waits until the other has begun; serially, that takes for ever."""
    pipeline, pairs = pipeline_of_pairs(together)
    begun, met = {action: threading.Event() for action in pairs}, []

    def wait_for_the_other(kind, do, stage, i, tensors):
        me = Action(kind, stage, i)
        if together and me in pairs:
            begun[me].set()
            met.append(begun[pairs[me]].wait(60))
        return do(stage, i, tensors)

    for kind in ("F", "BW"):
        pipeline.work[kind] = partial(wait_for_the_other, kind, pipeline.work[kind])
    pipeline.step(cut_batch(token_data(), 6))
    return met, [p.grad for p in pipeline.parameters()], len(pairs)


def both_ways():
    return meet(True), meet(False)


def test_the_pairs_of_a_schedule_run_at_once():
    for (met, gradients, pairs), (_, expected, _) in launch(both_ways, 2):
        assert pairs > 4
        assert met == [True] * pairs
        for a, b in zip(gradients, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def fail_beside():
    pipeline, pairs = pipeline_of_pairs(True)

    def fail(stage, i, tensors, do=pipeline.work["BW"]):
        if Action("BW", stage, i) in pairs:
            raise ArithmeticError("of a pair")
        return do(stage, i, tensors)

    pipeline.work["BW"] = fail
    pipeline.step(cut_batch(token_data(), 6))


def test_the_failure_of_a_backward_that_runs_beside_a_forward_is_raised():
    with pytest.raises(RankError, match=r"ArithmeticError: of a pair\n.*was at B"):
        launch(fail_beside, 2)


def threads_under_a_ledger():
    pipeline, _ = pipeline_of_pairs(True)
    backward, threads = pipeline.work["BW"], set()

    def noted(*given):
        threads.add(threading.current_thread())
        return backward(*given)

    pipeline.work["BW"] = noted
    with record_traffic():
        pipeline.step(cut_batch(token_data(), 6))
    return threads == {threading.main_thread()}


def test_a_ledger_sees_all_that_it_records_so_nothing_runs_beside_it():
    assert launch(threads_under_a_ledger, 2) == [True, True]
