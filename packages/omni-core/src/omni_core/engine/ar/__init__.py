"""The AR engine: one vLLM engine for each stage replica, extended by inputs that models compute and frames of codes."""
