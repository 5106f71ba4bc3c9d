"""Full-duplex sessions for Omni pipelines."""
