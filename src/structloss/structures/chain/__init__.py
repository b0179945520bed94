"""Chains: label sequences scored by every q labels in a row; latent ones and CTC too."""
