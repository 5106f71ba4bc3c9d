"""MOSS-Audio-Tokenizer: audio to frames of codes and back, in causal transformers from end to end."""
