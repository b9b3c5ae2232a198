"""Parameters and multiply-accumulates of the candidates and of the FFNs that they replace (Whipp
§3.2, §3.4, Tables 2 and 3), counted on modules."""

import pandas as pd
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, LlamaConfig
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.llama.modeling_llama import LlamaMLP

from lib.second.linear.affine import AffineMap
from lib.second.probes.products import PROBES, build_probe, n_params


def macs_per_token(module: nn.Module, d_in: int) -> int:
    """Multiply-accumulates of the matrix products that a position-wise module makes of one token
    (Whipp §3.4): half of what torch counts as operations. Biases, activations and element-wise
    products are not counted."""
    weights = next(iter(module.state_dict().values()))
    token = torch.zeros(1, d_in, device=weights.device, dtype=weights.dtype)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(token)
    return counter.get_total_flops() // 2


def gpt2_ffn(d: int, inner: int) -> nn.Module:
    """The FFN of GPT-2, with biases and without content."""
    with torch.device("meta"):
        return GPT2MLP(inner, GPT2Config(n_embd=d))


def llama_ffn(d: int, inner: int) -> nn.Module:
    """The SwiGLU FFN of a Llama, without biases and without content."""
    with torch.device("meta"):
        return LlamaMLP(LlamaConfig(hidden_size=d, intermediate_size=inner))


def accounting(d: int = 768, inner: int = 3072) -> pd.DataFrame:
    """Parameters and multiply-accumulates a token of both FFNs and of the candidates of rank 16 at
    width `d`: indexed by layer, columns params, macs, macs_over_d2."""
    layers = {
        "gpt2_ffn": gpt2_ffn(d, inner),
        "llama_ffn": llama_ffn(d, inner),
        "linear": AffineMap(torch.zeros(d, d), torch.zeros(d)),
        **{name: build_probe(name, d, d) for name in PROBES},
    }
    rows = [
        {"layer": name, "params": n_params(layer), "macs": macs_per_token(layer, d)}
        for name, layer in layers.items()
    ]
    return pd.DataFrame(rows).set_index("layer").assign(macs_over_d2=lambda t: t.macs / d**2)
