"""Generation: the model's prediction for the last token becomes the next token, again and again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib.models.bart import Bart, attention_masks
from course_lib.models.kv_cache import Cache, KVCache


@torch.no_grad()
def generate(
    model: nn.Module,
    prompts: Tensor | Sequence[Sequence[int]],
    new_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    stop: int | None = None,
    cache: Cache | None = None,
    use_cache: bool = True,
) -> list[list[int]]:
    """The tokens that follow each prompt, ``new_tokens`` of them or fewer.

    Args:
        model: tokens ``(batch, seq)`` to logits ``(batch, seq, vocab)`` (GPT, Llama, Falcon). Its dropout is off.
        prompts: tokens ``(batch, seq)``, or lists, which may differ in length: those are padded on the left.
        temperature: 0 takes the likeliest token; otherwise it is drawn from softmax(logits / temperature).
        seed: the draws of prompt ``i`` begin with ``seed + i``, so they do not depend on the other prompts.
        stop: a sequence ends after this token.
        cache: an empty cache, for prompts of equal length. None: a ``KVCache`` of the length that is needed.
        use_cache: False computes every token again for each new one, prompt by prompt: slow, and for comparison.

    Raises:
        ValueError: a prompt is empty, a number is out of its range, or the model or the cache is too short.
    """
    prompts = prompts.tolist() if isinstance(prompts, Tensor) else [list(prompt) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    if not prompts or min(lengths) < 1:
        raise ValueError(f"the prompts have {lengths} tokens; each needs at least 1.")
    if new_tokens < 1:
        raise ValueError(f"new_tokens is {new_tokens}; choose at least 1.")
    if not temperature >= 0:
        raise ValueError(f"temperature is {temperature}; choose 0 for the likeliest token, or more.")
    if cache is not None and len(set(lengths)) > 1:
        raise ValueError(f"a cache can be given for prompts of one length only, and they have {lengths}.")
    if not use_cache and len(prompts) > 1:
        settings = {"temperature": temperature, "stop": stop, "use_cache": False}
        return [
            generate(model, [prompt], new_tokens, seed=seed + i, **settings)[0]
            for i, prompt in enumerate(prompts)
        ]

    device, width = next(model.parameters()).device, max(lengths)
    padding = torch.tensor([width - length for length in lengths], device=device)
    tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    if cache is None:
        cache = KVCache(width + new_tokens, padding if padding.any() else None)
    draws = [torch.Generator().manual_seed(seed + i) for i in range(len(prompts))]
    result: list[list[int]] = [[] for _ in prompts]
    was_training = model.training
    model.eval()
    try:
        for _ in range(new_tokens):
            logits = model(tokens, cache=cache) if use_cache else model(tokens)  # (batch, seq, vocab)
            chosen = [choose(row, temperature, draw) for row, draw in zip(logits[:, -1], draws, strict=True)]
            for row, token in zip(result, chosen, strict=True):
                if not row or row[-1] != stop:
                    row.append(token)
            if all(row[-1] == stop for row in result):
                break
            new = torch.tensor(chosen, device=device)[:, None]
            tokens = new if use_cache else torch.cat((tokens, new), dim=1)
    finally:
        model.train(was_training)
    return result


def choose(logits: Tensor, temperature: float = 0.0, generator: torch.Generator | None = None) -> int:
    """One token from logits ``(vocab,)``: the likeliest, or one drawn at this temperature (on the CPU)."""
    if temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.cpu().double() / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


class BartWriter(nn.Module):
    """A BART that has read its sources. From here on it is called as a GPT is, so ``generate`` takes it.

    >>> start = [bart.config.decoder_start_token_id]                                  # doctest: +SKIP
    >>> generate(BartWriter(bart, tokens, mask), [start] * len(tokens), 20)           # doctest: +SKIP

    Args:
        tokens, mask: the sources ``(batch, source)``, and where they are no padding. Dropout is turned off.
    """

    @torch.no_grad()
    def __init__(self, bart: Bart, tokens: Tensor, mask: Tensor | None = None) -> None:
        super().__init__()
        self.bart = bart.eval()
        call = {"tokens": tokens, "mask": mask}
        if hasattr(bart, "prompt"):  # of fine-tuning: it stands before the sources
            call = bart.prompt.lengthen(call)
        self.keys, _ = attention_masks(call["mask"], None)
        self.memory = bart.model.encoder(call["tokens"], self.keys)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        if len(tokens) != len(self.memory):
            raise ValueError(
                f"{len(self.memory)} sources were read, and {len(tokens)} prompts came: give one each."
            )
        return self.bart.logits(self.bart.model.decoder(tokens, self.memory, self.keys, cache=cache))
