"""What a model does, seen in two tiny forward passes."""

import torch
from transformers import PreTrainedModel

from lib.second.base.errors import InputError
from lib.second.models.blocks import Block


@torch.no_grad()
def _behaviour(model: PreTrainedModel, blocks: tuple[Block, ...]) -> tuple[bool, bool]:
    """(parallel, layers return tuples), seen in two tiny forward passes that also confirm that each
    FFN is what it seems.

    Parallel: the first FFN's input at a position ignores the positions before it, so it skipped
    attention. Raises InputError if calling a found FFN on its recorded input does not give its
    recorded output.
    """
    seen: dict[int, list] = {b.index: [] for b in blocks}
    returned = []
    # Cloned: Falcon adds its attention output to the FFN's output in place.
    handles = [
        b.ffn.register_forward_hook(
            lambda _, args, y, i=b.index: seen[i].append((args[0], y.clone()))
        )
        for b in blocks
    ]
    handles.append(
        blocks[0].layer.register_forward_hook(lambda _, args, out: returned.append(type(out)))
    )
    try:
        for first in (1, 2):
            model(
                torch.tensor([[first, 3, 4]], device=model.get_input_embeddings().weight.device),
                use_cache=False,
            )
    finally:
        for handle in handles:
            handle.remove()
    for block in blocks:
        if not seen[block.index] or not torch.equal(
            block.ffn(seen[block.index][0][0]), seen[block.index][0][1]
        ):
            raise InputError(
                f"block {block.index}: {type(block.layer).__name__}.{block.ffn_name} does "
                "not map its recorded input to its recorded "
                "output, so it is not the FFN alone; this architecture is not supported."
            )
    (x1, _), (x2, _) = seen[0]
    return torch.equal(x1[..., -1, :], x2[..., -1, :]), issubclass(returned[0], tuple)
