"""The solutions of chapter 02, which say what is right, against independent answers."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from facts_alike import facts_that_differ
from torch import nn

from course_lib.data.bpe import count_pairs, merge, most_frequent
from course_lib.grading.material import check_file, material
from course_lib.models.masks import causal_mask


def same_in_every_case(exercise, *answers):
    given = material(exercise)
    for case in given.cases(0):
        answer = answers[0] if len(answers) == 1 else answers
        assert not facts_that_differ(given, answer, given.solution, case), case.name
        found = given.observe(given.solution, case)
        assert not any(found.get(key) for key, fact in given.facts.items() if fact.most is not None), (
            case.name
        )


def test_pairs_are_merged_as_by_the_course_s_tokenizer():
    def merge_once(words, new):
        pair = most_frequent(count_pairs(words.items()))
        return pair, {tuple(merge(word, pair, new)) if pair else word: n for word, n in words.items()}

    def encode(ids, merges):
        while known := [pair for pair in pairwise(ids) if pair in merges]:
            pair = min(known, key=merges.get)
            ids = merge(ids, pair, merges[pair])
        return ids

    same_in_every_case("02.1", merge_once, encode)


def test_pairs_are_turned_as_complex_numbers_are():
    def rotate(x, positions, turned, base):
        angles = positions.double()[:, None] * base ** -(torch.arange(0, turned, 2).double() / turned)
        numbers = torch.view_as_complex(x[..., :turned].double().unflatten(-1, (-1, 2)).contiguous())
        both = torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
        return torch.cat([both.to(x.dtype), x[..., turned:]], -1)

    same_in_every_case("02.2", rotate, lambda keys, by, *more: rotate(keys, torch.tensor([-by]), *more))


def test_moved_keys_are_keys_of_earlier_positions():
    rotate, shift = material("02.2").solution
    x, positions = torch.randn(2, 3, 5, 8), torch.arange(9, 14)
    torch.testing.assert_close(
        shift(rotate(x, positions, 4, 100.0), 9, 4, 100.0), rotate(x, positions - 9, 4, 100.0)
    )


def test_fewer_heads_attend_as_pytorch_says():
    def pool(weight, heads, kv_heads):
        size, group = len(weight) // heads, heads // kv_heads
        rows = [weight[(i * group + j) * size :][:size] for i in range(kv_heads) for j in range(group)]
        return torch.cat([sum(rows[i : i + group]) / group for i in range(0, heads, group)])

    def attend(q, k, v):
        mask = causal_mask(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    same_in_every_case("02.3", pool, attend)


def test_the_mask_is_what_is_said_of_one_place_after_the_other():
    def mask_of(prefixes, lengths, seq):
        mask = torch.eye(seq, dtype=torch.bool).repeat(len(lengths), 1, 1)
        for b, (prefix, length) in enumerate(zip(prefixes.tolist(), lengths.tolist(), strict=True)):
            for i in range(length):
                for j in range(length):
                    mask[b, seq - length + i, seq - length + j] = j <= i or max(i, j) < prefix
        return mask

    same_in_every_case("02.4", mask_of)


def test_the_parameters_are_those_of_a_model_of_these_sizes():
    def built(c):
        queries, keys, h = c["heads"] * c["head_size"], c["kv_heads"] * c["head_size"], c["hidden"]
        norm = nn.LayerNorm if c["norm"] == "layer" else nn.RMSNorm
        with torch.device("meta"):
            model = nn.ModuleList([nn.Embedding(c["vocab"], h), norm(h)])
            for _ in range(c["layers"]):
                model += [nn.Linear(h, n, bias=c["qkv_bias"]) for n in (queries, keys, keys)]
                model += [nn.Linear(n, h, bias=False) for n in (queries, c["inner"])]
                model += [nn.Linear(h, c["inner"], bias=False) for _ in range(1 + c["gated"])]
                model += [norm(h) for _ in range(2 - c["parallel"])]
            return model if c["tied"] else model.append(nn.Linear(h, c["vocab"], bias=False))

    parameters, cache_bytes, most_tokens = material("02.5").solution
    for case in material("02.5").cases(0):
        count = sum(p.numel() for p in built(case.config).parameters())
        keys = torch.empty(case.config["layers"], 2, case.config["kv_heads"], case.config["head_size"])
        assert (parameters(case.config), cache_bytes(case.config, 4)) == (count, keys.nbytes), case.name
        for tokens in (0, 1, 7):
            memory = 4 * count + tokens * keys.nbytes
            assert [most_tokens(case.config, memory + more, 4) for more in (0, keys.nbytes - 1)] == [
                tokens
            ] * 2
        assert most_tokens(case.config, count, 4) == 0


def test_a_text_in_several_calls_gives_what_one_call_gives():
    given = material("02.6")
    for case in given.cases(0):
        attention, x = check_file("02.6").inputs(case)
        found = given.observe(given.solution, case)
        torch.testing.assert_close(found["result"], attention(x), rtol=1e-4, atol=1e-4)
        both = torch.cat([attention(x), attention(x.flip(1))])
        torch.testing.assert_close(found["turns"], both, rtol=1e-4, atol=1e-4)
        assert found["bytes"] == 0
