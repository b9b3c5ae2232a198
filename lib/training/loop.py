"""Train a small decoder language model: the loop behind data/models, decoders and mixers."""

import contextlib
import functools
import math
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from tokenizers import ByteLevelBPETokenizer
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast, get_scheduler

from lib.errors import InputError
from lib.files import say_once
from lib.keys import settings
from lib.text.windows import Windows
from lib.training.decoder import Gated


def train_tokenizer(documents: list[str], vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer."""
    bpe = ByteLevelBPETokenizer()
    end = "<|endoftext|>"
    bpe.train_from_iterator(documents, vocab_size, special_tokens=[end], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token=end, bos_token=end)


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained: AdamW, a linear warm-up, then cosine to a tenth of the peak rate, or,
    with `decay`, the peak until the last `decay` steps, which go to 0 (WSD)."""

    steps: int = 1500
    batch: int = 16
    """windows a step"""
    lr: float = 2e-3
    warmup: int = 100
    """steps"""
    decay: int | None = None
    """steps"""
    weight_decay: float = 0.1
    """on matrices"""
    seed: int = 42
    """of the order of the windows"""
    beta2: float = 0.95
    """of AdamW's second moment"""
    ffn_unfreeze_step: int = 0
    """step from which FFNs (parameters under an `mlp`) learn; before it they stay as they start"""
    bfloat16: bool = False
    """matrix products in bfloat16, the weights in float32"""
    gate_penalty: float = 0.0
    """times the mean opening of the gates of the FFNs that have one, added to the loss (L1)"""

    @property
    def provenance(self) -> dict[str, str]:
        """The training in words, for keys."""
        return settings(
            self,
            steps="steps",
            batch="windows a step",
            lr="rate",
            warmup="steps of warm-up",
            decay="last steps, in which the rate falls to 0",
            weight_decay="weight decay",
            seed="order of the text",
            beta2="beta 2",
            ffn_unfreeze_step="first step at which FFNs learn",
            bfloat16="products in bfloat16",
            gate_penalty="penalty of the gates' mean opening",
        )


@torch.enable_grad()
def train(
    model: PreTrainedModel,
    data: Windows,
    recipe: TrainConfig,
    *,
    callback: Callable[[int], None] | None = None,
    callback_steps: Collection[int] = (),
    compiled: bool = False,
) -> list[float]:
    """Train `model` in place and return each step's loss in nats. No window is read again before
    all others are. Same seed, same machine, same weights (of a model without dropout).

    `callback(step)` is called after each step in `callback_steps` (0: before the first), with the
    model in eval mode; it must not change it. `compiled`: a Llama's layers and the loss go through
    torch.compile, which rounds otherwise and needs a C++ compiler. Under `accelerate launch` every
    process reads its share of a batch. Raises InputError for a training that diverged.
    """
    # autocast stands around the forward pass below, so that `callback` reads in float32
    accelerator = Accelerator(mixed_precision="no")
    plain = adamw(model.parameters(), recipe)
    rate = _rate(plain, recipe)
    wrapped, optimizer = accelerator.prepare(model, plain)
    loss_of, forwards = _compiled(model) if compiled else (next_token_loss, {})
    losses: list[float] = []
    order = _order(len(data), recipe)
    of_process = slice(accelerator.process_index, None, accelerator.num_processes)
    # FFNs with a gate of their own, where its opening is penalized.
    gates = [m for m in model.modules() if isinstance(m, Gated)] if recipe.gate_penalty else []
    ffns = [p for name, p in model.named_parameters() if ".mlp." in name]
    bar = tqdm(range(recipe.steps + 1), desc="training", delay=2, leave=False)
    for step in bar:
        if callback and step in callback_steps:
            model.eval()
            callback(step)
        if step == recipe.steps:
            break
        wrapped.train()
        chosen = order[step * recipe.batch : (step + 1) * recipe.batch][of_process]
        tokens = data.tokens[chosen].to(accelerator.device)  # [batch, seq_len]
        rounded = torch.autocast(tokens.device.type, torch.bfloat16, enabled=recipe.bfloat16)
        with rounded, _placed(forwards):
            logits = wrapped(tokens, use_cache=False).logits
        loss = loss_of(logits, tokens)
        learned_from = loss
        if gates:
            opening = torch.stack([gate.opening.mean() for gate in gates]).mean()
            learned_from = loss + recipe.gate_penalty * opening
        for group in plain.param_groups:
            group["lr"] = recipe.lr * rate(step)
        optimizer.zero_grad(set_to_none=True)
        accelerator.backward(learned_from)
        if step < recipe.ffn_unfreeze_step:  # FFNs do not learn yet
            for p in ffns:
                p.grad = None
        accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        if step % 20 == 0:
            _show(bar, losses[-1], recipe.batch * data.tokens.shape[1])
    if losses and not math.isfinite(losses[-1]):
        raise InputError(f"the training diverged at rate {recipe.lr}: give a smaller one.")
    model.eval()
    return losses


def _compiled(model: PreTrainedModel) -> tuple[Callable, dict[nn.Module, Callable]]:
    """The loss, and the forward pass of each layer, compiled. Each width of an FFN is built once;
    the default gives up after eight."""
    layers = model.model.layers
    forwards = {layer: torch.compile(layer.forward, recompile_limit=256) for layer in layers}
    return torch.compile(next_token_loss), forwards


def _show(bar: tqdm, loss: float, tokens_a_step: int) -> None:
    """Loss and speed at a bar's end."""
    speed = f"{(bar.format_dict['rate'] or 0) * tokens_a_step:,.0f}"
    bar.set_postfix(loss=f"{loss:.3f}", tokens_per_second=speed, refresh=False)


def adamw(
    parameters: Iterable[nn.Parameter], recipe: TrainConfig, of_matrix: int = 2
) -> torch.optim.AdamW:
    """AdamW that decays matrices alone: what has `of_matrix` dimensions or more."""
    parameters = list(parameters)
    matrices = [p for p in parameters if p.dim() >= of_matrix]
    vectors = [p for p in parameters if p.dim() < of_matrix]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, recipe.beta2), fused=True)


def _rate(optimizer: torch.optim.Optimizer, recipe: TrainConfig) -> Callable[[int], float]:
    """The learning rate at a step as a share of its peak: the function inside transformers'
    schedule."""
    if recipe.decay is None:
        kind = "cosine_with_min_lr"
        options: dict = {"min_lr_rate": 0.1}
    else:
        kind = "warmup_stable_decay"
        options = {"num_decay_steps": recipe.decay, "decay_type": "linear"}
    schedule = get_scheduler(
        kind, optimizer, recipe.warmup, recipe.steps, scheduler_specific_kwargs=options
    )
    return schedule.lr_lambdas[0]


def _order(n_windows: int, recipe: TrainConfig) -> torch.Tensor:
    """Every window once, then all again in another order, as long as there are steps."""
    generator = torch.Generator().manual_seed(recipe.seed)
    n_epochs = math.ceil(recipe.steps * recipe.batch / n_windows)
    return torch.cat([torch.randperm(n_windows, generator=generator) for _ in range(n_epochs)])


def worth_compiling(steps: int) -> bool:
    """Whether a training is long enough for half a minute of torch.compile, and that works."""
    return steps >= 500 and _compiles()


@functools.cache
def _compiles() -> bool:
    """Whether torch.compile works here. It needs g++, which may be there and compile nothing, a
    folder for what it compiles, and a path of torch's headers without a space or an umlaut."""
    if not re.fullmatch(r"[!-~]+", torch.__file__) or shutil.which("g++") is None:
        return False
    try:
        torch.compile(lambda x: 2 * x.sin())(torch.ones(8))
    except Exception as error:  # whatever a compiler or a file system does
        say_once(f"torch.compile does not work here ({type(error).__name__}): trained without it.")
        return False
    return True


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The mean loss in nats of predicting each next token of a batch."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


@contextlib.contextmanager
def _placed(forwards: Mapping[nn.Module, Callable]) -> Iterator[None]:
    """While open, these modules have these forward passes; then their own again."""
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)
