"""The Nonlinearity Budget: how much of a transformer's FFN is nonlinear, and where should it go?

text -> token windows -> model -> (x, y) of each FFN -> moments -> affine map -> swapped into the
live model -> losses -> table -> figure, summary, report. Rooms and files in the order in which they
build on one another; an import only ever points up this list, or to the left in a line:

    errors plots stats: bad input; charts; the interval over documents
    keys files tables store: words of inputs; files that are whole; small tables; what is remembered
    paper: what papers print, and how a number of ours is shown
    text/ corpora grammar ngram windows needles: texts; of known entropy; counts; token windows
    models/ assets names blocks: what may be named, and where it comes from; a model, its blocks
    hooks lazy: record, swap and resume on a live model; modules that are made when first used
    models/ parts rounding loading: blocks and FFNs found and tried; fewer bits; a model by name
    linear/ affine moments regression robust rank: affine maps, and how well they fit
    linear/ candidates probes descent: other layers; trained in an FFN's place; maps by descent
    swap/ healing losses sweep expected novelty: what something else in an FFN's place costs
    swap/ massive rows_back read_errors: what a few positions do to a map, and what of them does it
    swap/ instruments: all instruments on one model
    gating/ increases gates sparse tokens routers routing: where FFNs are needed; routed and sparse
    gating/ pieces: several affine maps in an FFN's place
    training/ decoder loop mixers parallel widths: what is trained here, and by which loop
    studies/ replacements study finetune mixer_study decoder_study: what pages train, and on what
    studies/ linearity retrieval softgates: what trained decoders do; gates that are trained
    page report committed cli: what a page shows; one run; committed pages; the command line
"""

import os
import sys
import warnings

# Progress bars are for who waits at a terminal or in JupyterLab or VS Code; elsewhere (papermill,
# a log) each of their updates would be a line. tqdm reads this when it is first imported.
if not (sys.stderr.isatty() or {"JPY_SESSION_NAME", "VSCODE_PID"} & {*os.environ}):
    os.environ.setdefault("TQDM_DISABLE", "1")

# torch is not even imported where the folder that is named for its compiled code cannot be made.
try:
    os.makedirs(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "."), exist_ok=True)
except OSError:
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]

# Every report would open with tqdm's advice to install widgets, which break its rendering.
warnings.filterwarnings("ignore", message="IProgress not found")
