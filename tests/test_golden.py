"""The numbers of golden.json, computed anew from an empty cache."""

import json

from golden import GOLDEN, compare, compute


def test_no_number_moves_while_its_version_stays(own_cache):
    wrong = compare(json.loads(GOLDEN.read_text()), compute())
    assert not wrong, (
        "; ".join(wrong) + ". If that was meant: raise `version` of the step whose arithmetic "
        "changed (else every cache keeps the old numbers), then run `python tests/golden.py`."
    )


def test_a_moved_number_is_noticed():
    old = {"a": {"version": "f-1", "value": 2.0}, "b": {"version": "g-1", "value": 0.0}}
    assert compare(old, old) == []
    moved = old | {"a": {"version": "f-1", "value": 2.01}}
    assert compare(old, moved) == ["a moved from 2.0 to 2.01, but its step is still f-1"]
    raised = old | {"a": {"version": "f-2", "value": 2.01}}
    assert compare(old, raised) == ["a: its step is now f-2, the kept number is of f-1"]
    assert len(compare(old, {})) == 2
