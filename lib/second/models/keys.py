"""What stored results of a model depend on: digests of its weights, its configuration and its
modules.

The names and the arithmetic in this file are part of the keys of stored results: what is added to
them is added by lib.second.models.witness, which is not.
"""

import hashlib

from transformers import PreTrainedModel

from lib.second.models.witness import with_content


@with_content
def _state(model: PreTrainedModel) -> tuple:
    """Cheap witness of the module tree: types, and address and version (in-place edits count it
    up) of every tensor."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return tuple((n, type(m)) for n, m in model.named_modules()), tuple(
        (n, t.data_ptr(), t._version) for n, t in tensors
    )


def _config_key(model: PreTrainedModel) -> str:
    return hashlib.sha256(
        f"{type(model).__name__}{model.config.to_json_string()}".encode()
    ).hexdigest()[:8]


def _tensors_key(model: PreTrainedModel) -> str:
    state = hashlib.sha256()
    for tensor in model.state_dict().values():
        state.update(tensor.detach().cpu().float().numpy().tobytes())
    return state.hexdigest()[:16]
