"""Per-token losses and perplexity (Balogh §3.2)."""

import numpy as np
import torch

from lib.second.base.errors import InputError
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


def next_token_losses(logits: torch.Tensor, tokens: torch.Tensor, chunk: int = 128) -> torch.Tensor:
    """Next-token NLL in nats, [batch, seq_len-1], from logits [batch, seq_len, vocab]; log-softmax
    in float64 (Balogh §3.2).

    Computed a few rows at a time: a float64 copy of all logits would be the largest array of the
    whole run.
    """
    flat, target = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().to(logits.device)
    rows = []
    for part, index in zip(flat.split(chunk), target.split(chunk), strict=True):
        part = part.double()
        rows.append(part.logsumexp(-1) - part.gather(-1, index[:, None])[:, 0])
    return torch.cat(rows).view(len(tokens), -1)


@torch.no_grad()
def token_losses(subject: Subject, windows: Windows, batch: int = 16) -> torch.Tensor:
    """Losses of the model as it stands on `windows`: float64 [n, seq_len-1], nats, on the CPU."""
    subject.check(windows, batch)
    return torch.cat([_losses(subject, chunk) for chunk in windows.tokens.split(batch)])


def _losses(subject: Subject, tokens: torch.Tensor) -> torch.Tensor:
    tokens = tokens.to(subject.device)
    losses = next_token_losses(subject.model(tokens, use_cache=False).logits, tokens).cpu()
    if not torch.isfinite(losses).all():
        raise InputError(
            f"the loss of {subject.name} is not finite at token "
            f"{int((~torch.isfinite(losses)).flatten().nonzero()[0])}: check its weights and "
            "the swapped module."
        )
    return losses


def perplexity(losses: torch.Tensor | np.ndarray) -> float:
    """exp of the mean next-token NLL."""
    return float(np.exp(np.mean(np.asarray(losses))))
