"""Cortes 2018, section 6: artificial genome sequences, trained with cross-entropy and with Smith-Waterman.

The paper says: the data replicate Joachims et al. (2006); each example has native, homolog and decoy sequences of
length 50; the task is to predict a sequence that is the closest to native in terms of the Smith-Waterman alignment
score; cross-entropy reaches 42.73, the objective (1) with the Smith-Waterman loss 44.65, with a standard deviation of
0.35 over 10 random folds, and a higher accuracy. It does not say what the model and its features are, what sizes, nor
whether a sequence is chosen among those given or written letter by letter. Both readings are run, in several forms.
"""
