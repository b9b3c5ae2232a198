"""The Nonlinearity Budget: how much of a transformer's FFN is nonlinear, and where should it go?

text -> token windows -> model -> (x, y) of each FFN -> moments -> affine map -> swapped into the
live model -> losses -> table -> figure, comparison, report. Imports only ever point up this list:

    errors  files                   one exception for bad input; a file that is whole or not there
    keys                            inputs in words, and modules that are still what they were
    cache   stats   plots           the user's cache; the one interval; house style and chart forms
    assets  names                   pinned downloads; profiles and models that a reader may name
    text    ngram                   corpora and token windows; counted n-grams
    kept                            measurements that end in a small table, kept in the repository
    grammar paper                   text whose entropy is known; what papers print, claims, readings
    model   hooks   affine          load a subject and find its FFNs; record, swap, resume; maps
    moments linear  rank            sufficient statistics; R² and repaired maps; effective rank
    losses                          losses by document, and what a replacement adds to them
    probes  descent swap            product probes; trained baselines; losses, sweep, healing
    gates   tokens    sparse        need, gates, routed FFNs; token and context; small entries out
    routing                         routers for all blocks, their thresholds, refits, the cost of it
    train   parallel decoder        the training loop; several at once; a width in every layer
    stand_ins finetune              what takes an FFN's place; fine-tuning a model with it
    mixing  pretraining together    linear models; trained decoders; many of them at once on a GPU
    mixerlab lab                    mixers compared; decoders compared
    softgates                       gates between an FFN and its map, after such a training
    allocation                      where in depth the width goes
    report  page                    one run; what its page shows of it
    old_report                      notebooks that are not in the new form yet
    series                          the command line
"""

import warnings

# Every report would open with tqdm's advice to install widgets, which break its rendering.
warnings.filterwarnings("ignore", message="IProgress not found")
