"""Train many small decoders at once, for a GPU that one of them would leave idle.

The weights of N decoders stand in one tensor each, [N, …]. FFNs are filled up with zeros to the
widest of their layer: such units write nothing, get no gradient and stay zero, so each decoder
learns what it would learn alone, but for rounding. All is in float32.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu
from tqdm import tqdm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from lib.errors import InputError
from lib.text.windows import Windows
from lib.training.decoder import Decoder, window_mask
from lib.training.loop import TrainConfig, _order, _rate, adamw

READ_AT_ONCE = 16
"""windows, each by all decoders"""


class StackedDecoders:
    """N decoders of one shape, whose FFNs may have any widths. After a pass `openings` are the
    gates of its gated FFNs (lib.training.decoder.Gated), [N, token, 1] each."""

    def __init__(self, models: Sequence[Decoder], device: str):
        config = models[0].config
        if config.memory_layers:
            raise InputError("decoders with a memory are not trained many at once: use `train`.")
        self.n_layers = config.num_hidden_layers
        self.heads = config.num_attention_heads
        self.eps = config.rms_norm_eps
        self.kinds, self.parallel = config.ffn_kinds, config.parallel
        self.window = config.window
        self.openings: list[torch.Tensor] = []
        self.rotary = models[0].model.rotary_emb.to(device)
        each = [dict(model.named_parameters()) for model in models]
        names = dict.fromkeys(name for weights in each for name in weights)
        self.weights = {
            name: nn.Parameter(_stacked([weights.get(name) for weights in each]).to(device))
            for name in names
        }

    def losses(self, tokens: torch.Tensor) -> torch.Tensor:
        """Next-token losses of tokens [N, batch, position]: [N, batch, position - 1], nats."""
        logits = self.logits(tokens)[:, :, :-1]
        targets = tokens[:, :, 1:]
        losses = cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(targets.shape)

    @torch.no_grad()
    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """Each decoder's losses on the same tokens [n, seq_len]: [N, n, seq_len - 1], nats."""
        norm = self.weights["model.norm.weight"]
        parts = []
        for some in tokens.to(norm.device).split(READ_AT_ONCE):
            parts.append(self.losses(some[None].expand(len(norm), -1, -1)).cpu())
        return torch.cat(parts, dim=1)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [N, batch, position] -> [N, batch, position, vocab]."""
        n, batch, seq_len = tokens.shape
        # The stream, [N, batch * position, d].
        models = torch.arange(n, device=tokens.device)[:, None]
        x = self.weights["model.embed_tokens.weight"][models, tokens.flatten(1)]
        rotation = self.rotary(x, torch.arange(seq_len, device=tokens.device)[None])
        self.openings = []
        for layer in range(self.n_layers):
            entering = x
            x = entering + self._attention(layer, entering, batch, rotation)
            if f"model.layers.{layer}.post_attention_layernorm.weight" in self.weights:
                x = x + self._ffn(layer, entering if self.parallel else x)
        x = self._norm("model.norm", x)
        return self._map("lm_head", x).view(n, batch, seq_len, -1)

    def _map(self, module: str, x: torch.Tensor) -> torch.Tensor:
        """A linear map of x [N, token, inputs], with a bias where there is one."""
        y = x @ self.weights[f"{module}.weight"].mT
        bias = self.weights.get(f"{module}.bias")
        return y if bias is None else y + bias[:, None]

    def _norm(self, module: str, x: torch.Tensor) -> torch.Tensor:
        """Llama's RMSNorm of x [N, token, d]."""
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weights[f"{module}.weight"][:, None]

    def _ffn(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        name, kind = f"model.layers.{layer}", self.kinds[layer]
        x = self._norm(f"{name}.post_attention_layernorm", x)
        if kind == "affine":
            return self._map(f"{name}.mlp", x)
        if kind == "swiglu":
            return self._swiglu(f"{name}.mlp", x)
        if kind == "gelu":
            hidden = gelu(self._map(f"{name}.mlp.up_proj", x))
            return self._map(f"{name}.mlp.down_proj", hidden)
        linear, full = self._map(f"{name}.mlp.affine", x), self._swiglu(f"{name}.mlp.ffn", x)
        if kind == "hybrid":
            return linear + full
        self.openings.append(self._map(f"{name}.mlp.gate", x).sigmoid())
        return linear + self.openings[-1] * (full - linear)

    def _swiglu(self, ffn: str, x: torch.Tensor) -> torch.Tensor:
        hidden = silu(self._map(f"{ffn}.gate_proj", x)) * self._map(f"{ffn}.up_proj", x)
        return self._map(f"{ffn}.down_proj", hidden)

    def _attention(
        self, layer: int, x: torch.Tensor, batch: int, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        name = f"model.layers.{layer}"
        n, n_tokens, d = x.shape
        x = self._norm(f"{name}.input_layernorm", x)

        def by_head(module: str) -> torch.Tensor:
            """[N * batch, head, position, d of a head]"""
            out = self._map(f"{name}.self_attn.{module}", x)
            return out.view(n * batch, n_tokens // batch, self.heads, -1).transpose(1, 2)

        queries, keys = apply_rotary_pos_emb(by_head("q_proj"), by_head("k_proj"), *rotation)
        values = by_head("v_proj")
        seen = window_mask(values.shape[2], self.window, x.device) if self.window else None
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, is_causal=seen is None
        )
        heads = mixed.transpose(1, 2).reshape(n, n_tokens, d)
        if f"{name}.self_attn.gate_proj.weight" in self.weights:  # GatedAttention
            heads = heads * self._map(f"{name}.self_attn.gate_proj", x).sigmoid()
        return self._map(f"{name}.self_attn.o_proj", heads)


def train_together(
    models: Sequence[Decoder],
    data: Windows,
    recipes: Sequence[Sequence[TrainConfig]],
    callback: Callable[[int, StackedDecoders, torch.Tensor], None],
) -> None:
    """Train decoders side by side, on a GPU if there is one.

    `recipes` [branch][model]: those of a branch differ in their seeds alone. Branches of WSD
    recipes leave a shared trunk where their rates begin to fall, the shortest first; other recipes
    have one branch. After each branch `callback(branch, decoders, losses)` is called
    with the training losses [step, N]. Raises InputError for a training that diverges.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoders = StackedDecoders(models, device)
    optimizer = adamw(decoders.weights.values(), recipes[0][0], of_matrix=3)
    windows = data.tokens.to(device)
    order = torch.stack([_order(len(data), recipe) for recipe in recipes[-1]]).to(device)
    losses: list[torch.Tensor] = []

    def train_to(step_there: int, recipe: TrainConfig) -> None:
        _train_to(step_there, decoders, optimizer, windows, order, recipe, losses)

    *shorter, longest = [of_branch[0] for of_branch in recipes]
    for branch, recipe in enumerate(shorter):
        train_to(recipe.steps - (recipe.decay or 0), recipe)
        fork, n_before = _state(decoders, optimizer), len(losses)
        train_to(recipe.steps, recipe)
        callback(branch, decoders, torch.stack(losses))
        # Back to the trunk.
        _restore(fork, decoders, optimizer)
        del losses[n_before:]
    train_to(longest.steps, longest)
    callback(len(shorter), decoders, torch.stack(losses))


@torch.enable_grad()
def _train_to(
    step_there: int,
    decoders: StackedDecoders,
    optimizer: torch.optim.Optimizer,
    windows: torch.Tensor,
    order: torch.Tensor,
    recipe: TrainConfig,
    losses: list[torch.Tensor],
) -> None:
    """Train on, up to a step; `losses` gets each step's losses [N]."""
    rate = _rate(optimizer, recipe)
    ffns = [p for name, p in decoders.weights.items() if ".mlp." in name]
    for step in tqdm(range(len(losses), step_there), "together", delay=2, leave=False):
        chosen = order[:, step * recipe.batch : (step + 1) * recipe.batch]
        loss = decoders.losses(windows[chosen]).mean((1, 2))
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * rate(step)
        optimizer.zero_grad(set_to_none=True)
        learned_from = loss
        if recipe.gate_penalty:
            openings = torch.stack([opening.mean((1, 2)) for opening in decoders.openings])
            learned_from = loss + recipe.gate_penalty * openings.mean(0)
        learned_from.sum().backward()
        if step < recipe.ffn_unfreeze_step:  # FFNs do not learn yet
            for p in ffns:
                p.grad = None
        _clip(decoders)
        optimizer.step()
        losses.append(loss.detach())
    if losses and not losses[-1].isfinite().all():
        raise InputError(f"a training diverged at rate {recipe.lr}: give a smaller one.")


def _stacked(parameters: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """One tensor [N, …] of a parameter of each model, filled up with zeros to the largest."""
    there = [p for p in parameters if p is not None]
    largest = [max(sizes) for sizes in zip(*(p.shape for p in there), strict=True)]
    stacked = torch.zeros(len(parameters), *largest)
    for one, p in zip(stacked, parameters, strict=True):
        if p is not None:
            one[tuple(slice(size) for size in p.shape)] = p.detach()
    return stacked


def _clip(decoders: StackedDecoders, most: float = 1.0) -> None:
    """Scale each decoder's gradient to a norm of at most `most`, as clip_grad_norm_ does."""
    gradients = [p.grad for p in decoders.weights.values() if p.grad is not None]
    squared = sum(g.flatten(1).square().sum(1) for g in gradients)  # [N]
    scale = (most / (squared.sqrt() + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))


def _state(decoders: StackedDecoders, optimizer: torch.optim.Optimizer) -> list[dict]:
    """Copies of each parameter and of what Adam knows of it."""
    found = []
    for p in decoders.weights.values():
        known = {key: value.clone() for key, value in optimizer.state.get(p, {}).items()}
        found.append({"weight": p.detach().clone(), "adam": known})
    return found


def _restore(
    state: Sequence[dict], decoders: StackedDecoders, optimizer: torch.optim.Optimizer
) -> None:
    for p, kept in zip(decoders.weights.values(), state, strict=True):
        p.data.copy_(kept["weight"])
        optimizer.state.pop(p, None)
        if kept["adam"]:
            optimizer.state[p] = kept["adam"]
