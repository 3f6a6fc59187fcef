"""Transformers' models with experts in float64: where they round to 32 bits, they are made not to."""

from functools import partial

import torch
from torch.nn import functional as F


def saved(folder, config, kind):
    """A random model of that kind, saved in ``folder``; its experts lie in separate tensors there."""
    torch.manual_seed(0)
    config._experts_implementation = "eager"  # the others know no float64
    model = kind(config).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(bias, std=0.2)
    model.save_pretrained(folder)
    routers = {"MixtralTopKRouter": by_softmax, "DeepseekV3TopkRouter": by_sigmoid}
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = partial(rms_norm, module)
        if route := routers.get(type(module).__name__):
            module.forward = partial(route, module)
    return model


def rms_norm(norm, x):
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def by_softmax(router, x):
    logits = F.linear(x.reshape(-1, router.hidden_dim), router.weight)
    weights, chosen = logits.softmax(-1).topk(router.top_k)
    return logits, weights / weights.sum(-1, keepdim=True), chosen


def by_sigmoid(router, x):
    """Token by token."""
    logits = F.linear(x.reshape(-1, router.hidden_dim), router.weight)
    p, chosen = logits.sigmoid(), []
    size = router.num_experts // router.num_group
    for row in (p + router.e_score_correction_bias).tolist():
        groups = [row[g : g + size] for g in range(0, len(row), size)]
        worth = [sum(sorted(group)[-2:]) for group in groups]
        best = sorted(range(len(groups)), key=lambda g: -worth[g])[: router.topk_group]
        open_to = [e for e in range(len(row)) if e // size in best]
        chosen.append(sorted(open_to, key=lambda e: -row[e])[: router.top_k])
    weights = p.gather(1, torch.tensor(chosen))
    if router.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights * router.routed_scaling_factor, torch.tensor(chosen)


def check_equal(ours, theirs, vocabulary):
    """Logits and gradients."""
    tokens = torch.randint(vocabulary, (2, 33))
    mine, other = ours(tokens), theirs(tokens).logits
    assert (mine - other).abs().max() < 1e-9
    mine.square().mean().backward()
    other.square().mean().backward()
    expected, found = ({n: p.grad for n, p in model.named_parameters()} for model in (theirs, ours))
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 1e-9, name
