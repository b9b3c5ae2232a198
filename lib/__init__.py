"""The Nonlinearity Budget: how much of a transformer's FFN is nonlinear, and where should it go?

text -> token windows -> model -> (x, y) of each FFN -> moments -> affine map -> swapped into the
live model -> losses -> table -> figure, claim, report. Imports only ever point up this list:

    errors                          one exception for bad input
    cache   stats   plots           a cached step; the one interval; house style and chart forms
    assets  text                    pinned downloads; corpora and token windows
    model   hooks                   load a subject and find its FFNs; record, swap, resume
    moments linear  rank            sufficient statistics; R²_lin and repaired maps; effective rank
    descent probes  swap            trained baselines; product probes; losses, sweep, healing
    gates   tokens                  need, gates and routed FFNs; token and context, look-ups
    routing                         routers for all blocks, their thresholds, refits, the cost of it
    train                           the training loop; the tiny models of data/models
    mixers  decoder                 linear language models; a decoder with a width in every layer
    allocation tasks                where in depth the width goes; last words and told facts
    claims  report  series          ledger and verdict; one run of a notebook; the command line
"""

import warnings

# Every report would open with tqdm's advice to install widgets, which break its rendering.
warnings.filterwarnings("ignore", message="IProgress not found")
