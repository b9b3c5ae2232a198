"""Facts of Balogh's background and methods that hold by arithmetic, computed all the same (§2,
§3.1, §5.3)."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Block

from lib.second.gates.protocol import RIDGE
from lib.second.linear.affine import svd_ridge
from lib.second.linear.moments import Moments
from lib.second.models.hooks import capture
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

MEDIUM = 1024
"""width of GPT-2 Medium"""


def gelu_off_identity() -> float:
    """Largest |GELU(x) - x| for x from 1 upwards."""
    x = torch.linspace(1, 20, 100_001, dtype=torch.float64)
    return float((nn.functional.gelu(x) - x).abs().max())


def gelu_off_zero() -> float:
    """Largest |GELU(x)| for x up to -3."""
    x = torch.linspace(-40, -3, 100_001, dtype=torch.float64)
    return float(nn.functional.gelu(x).abs().max())


def ffn_parameters(d_model: int = MEDIUM) -> int:
    """Parameters of a GPT-2 FFN of that width: 8d² + 5d (Balogh Eq. 2)."""
    with torch.device("meta"):
        ffn = GPT2MLP(4 * d_model, GPT2Config(n_embd=d_model, n_head=1))
    return sum(p.numel() for p in ffn.parameters())


def ffn_share(d_model: int = MEDIUM) -> float:
    """Share of a GPT-2 layer's parameters that its FFN holds."""
    with torch.device("meta"):
        layer = GPT2Block(GPT2Config(n_embd=d_model, n_head=1))
    return ffn_parameters(d_model) / sum(p.numel() for p in layer.parameters())


def collapse_error(d_model: int = 64, seed: int = 0) -> float:
    """Largest relative difference of an FFN without its activation function from the one affine
    map W_proj W_fc x + W_proj b_fc + b_proj, float64 (Balogh §2)."""
    torch.manual_seed(seed)
    ffn = GPT2MLP(4 * d_model, GPT2Config(n_embd=d_model, n_head=1)).double().eval()
    ffn.act = nn.Identity()
    nn.init.normal_(ffn.c_fc.bias), nn.init.normal_(ffn.c_proj.bias)
    x = torch.randn(256, d_model, dtype=torch.float64)
    weight = ffn.c_fc.weight @ ffn.c_proj.weight
    bias = ffn.c_fc.bias @ ffn.c_proj.weight + ffn.c_proj.bias
    with torch.no_grad():
        y = ffn(x)
        return float((y - (x @ weight + bias)).norm() / y.norm())


@torch.no_grad()
def svd_against_moments(subject: Subject, windows: Windows, blocks: Sequence[int]) -> float:
    """Largest difference of the outputs of the map by thin SVD (Balogh Eq. 3-4) and of the one from
    moments, relative to their norm, over blocks: fitted on the first four fifths of the windows,
    read on the rest."""
    found, n = [], len(windows) * 4 // 5
    for x, y in capture(subject, windows, blocks).values():
        rows, target = x[:n].flatten(0, 1), y[:n].flatten(0, 1)
        unseen = x[n:].flatten(0, 1).double()
        by_svd = svd_ridge(rows, target, RIDGE)(unseen)
        by_moments = Moments.of(rows, target).fit(RIDGE)(unseen)
        found.append(float((by_svd - by_moments).norm() / by_svd.norm()))
    return max(found)
