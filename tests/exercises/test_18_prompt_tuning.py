"""The solutions of chapter 18, which say what is right, against independent answers."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from facts_alike import facts_that_differ

from course_lib.grading.material import material


def sequence_by_sequence(P, embedded, mask):
    """Positions are counted token by token."""
    rows, masks, positions = [], [], torch.zeros(len(mask), len(P) + mask.shape[1], dtype=torch.long)
    for x, seen, places in zip(embedded, mask, positions, strict=True):
        rows.append(torch.cat((P.to(x.dtype), x)))
        masks.append(torch.cat((seen.new_ones(len(P)), seen)))
        tokens = masks[-1].nonzero().flatten()
        places[tokens] = torch.arange(len(tokens))
    return torch.stack(rows), torch.stack(masks), positions


def in_double_by_pytorch(q, k, v, P_K, P_V, mask=None):
    """With values of 1 for the prefix and 0 for text, attention is the share."""
    (batch, heads, seq, _), n = q.shape, P_K.shape[1]
    q, k, v, P_K, P_V = (x.double() for x in (q, k, v, P_K, P_V))
    keys, values = (torch.cat((P.expand(batch, -1, -1, -1), x), 2) for P, x in ((P_K, k), (P_V, v)))
    mask = torch.ones(batch, seq, dtype=torch.bool) if mask is None else mask
    seen = F.pad(mask, (n, 0), value=True)[:, None, None]
    prefix = (torch.arange(n + seq) < n).double()[:, None].expand(batch, heads, -1, 1)
    output, share = (F.scaled_dot_product_attention(q, keys, of, seen) for of in (values, prefix))
    return output, share[..., 0]


def sentence_by_sentence(encode, embed, P, tokens, mask):
    found = []
    for row, seen in zip(tokens, mask, strict=True):
        x = torch.cat((P, embed(row[seen])))[None]
        found.append(encode(x, torch.ones(x.shape[:2], dtype=torch.bool))[0, len(P) :].mean(0))
    return torch.stack(found)


def by_trying_every_n(shape, tasks, requests, seq, room):
    token = 4 * shape.layers * shape.kv_heads * shape.head_size
    best = {"prompt": 0, "prefix": 0}
    for n in range(1, shape.positions - seq + 1):
        if requests * (seq + n) * token + tasks * n * shape.hidden * 2 <= room:
            best["prompt"] = n
        if requests * seq * token + tasks * n * token <= room:
            best["prefix"] = n
    return best


@pytest.mark.parametrize(
    ("exercise", "other"),
    [
        ("18.1", sequence_by_sequence),
        ("18.3", in_double_by_pytorch),
        ("18.4", sentence_by_sentence),
        ("18.5", by_trying_every_n),
    ],
)
def test_the_solution_gives_what_a_plainer_answer_gives(exercise, other):
    given = material(exercise)
    for case in given.cases(0):
        assert not facts_that_differ(given, given.solution, other, case), case.name


def test_a_prefix_is_cut_out_of_what_the_network_gives_number_by_number():
    n, layers, heads, size = 3, 2, 3, 2
    E, network = torch.nn.Parameter(torch.randn(n, 5)), torch.nn.Linear(5, layers * 2 * heads * size)
    prefix, out = material("18.2").solution(E, network, layers, heads), network(E).tolist()
    for _ in range(2):
        for layer in range(layers):
            found = torch.stack(prefix(layer)).tolist()
            for kind, head, token, i in itertools.product(*map(range, (2, heads, n, size))):
                column = ((layer * 2 + kind) * heads + head) * size + i
                assert found[kind][head][token][i] == out[token][column]
        prefix.fold()
