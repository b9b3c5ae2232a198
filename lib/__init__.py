"""The Nonlinearity Budget: how much of a transformer's FFN is nonlinear, and where in depth should its capacity go?

The modules follow the way of the data; imports only ever point to the left:

    errors, paths -> profiles, checks, claims (intervals, variance) -> cache -> assets -> corpora, subjects (blocks) -> hooks -> moments (surrogates)
    -> recoverability, rank, reweighted, outliers, domains, descent, baselines, perplexity, rows -> training, development
    -> probes, polyfit, residual, candidates, healing -> plots -> report -> render
"""

import warnings

# Every report would open with tqdm's advice to install widgets, which break the rendering of committed notebooks.
warnings.filterwarnings("ignore", message="IProgress not found")
