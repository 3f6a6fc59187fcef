import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from course_lib.models.llama import LlamaAttention, LlamaConfig, LlamaMLP
from course_lib.models.norms import PostNorm, PreNorm, RMSNorm, deepnorm_constants, scale_initial


def test_rms_norm_equals_transformers():
    theirs, ours = LlamaRMSNorm(6, eps=1e-5), RMSNorm(6, 1e-5)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    for dtype in (torch.float32, torch.bfloat16):
        x = 5 * torch.randn(3, 6).to(dtype)
        torch.testing.assert_close(ours.to(dtype)(x), theirs.to(dtype)(x))


def test_post_norm_equals_torchs_encoder_layer_and_pre_norm_too():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    for norm_first, residual in [(True, PreNorm), (False, PostNorm)]:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
        attention = SelfAttention(layer.self_attn)
        mlp = nn.Sequential(layer.linear1, nn.ReLU(), layer.linear2)
        ours = nn.Sequential(residual(attention, layer.norm1), residual(mlp, layer.norm2))
        torch.testing.assert_close(ours(x), layer(x))


class SelfAttention(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_deepnorm_follows_the_papers_table():
    alpha, beta = deepnorm_constants(18)
    assert alpha**4 == pytest.approx(36)
    assert beta**-4 == pytest.approx(144)
    linear, norm, x = nn.Linear(6, 6, bias=False), nn.LayerNorm(6), torch.randn(3, 6)
    before = linear.weight.clone()
    scale_initial([linear.weight], beta)
    torch.testing.assert_close(linear.weight, before * beta)
    torch.testing.assert_close(PostNorm(linear, norm, alpha)(x), norm(alpha * x + x @ (beta * before).T))
    with pytest.raises(ValueError, match="layers is 0"):
        deepnorm_constants(0)


def test_without_a_warm_up_deepnorm_trains_where_post_norm_does_not():
    """Twelve layers say the token before; a guess among 32 has a loss of log 32 = 3.47."""
    losses = {}
    for name, (alpha, beta) in {"post-norm": (1.0, 1.0), "DeepNorm": deepnorm_constants(12)}.items():
        torch.manual_seed(0)
        config = LlamaConfig.tiny(hidden_size=64, intermediate_size=172)
        sublayers = [kind(config) for _ in range(12) for kind in (LlamaAttention, LlamaMLP)]
        for weight_name, weight in nn.ModuleList(sublayers).named_parameters():
            nn.init.xavier_normal_(weight)
            if not weight_name.endswith(("q_proj.weight", "k_proj.weight")):
                scale_initial([weight], beta)
        body = nn.Sequential(*(PostNorm(sublayer, nn.LayerNorm(64), alpha) for sublayer in sublayers))
        model = nn.Sequential(nn.Embedding(32, 64), body, nn.Linear(64, 32))
        optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
        for _ in range(45):
            tokens = torch.randint(32, (4, 17))
            loss = nn.functional.cross_entropy(model(tokens)[:, 1:].flatten(0, 1), tokens[:, :-1].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert losses["post-norm"] > 3.3
    assert losses["DeepNorm"] < 2.5
