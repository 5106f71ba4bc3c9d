"""The plugin of omni-models-qwen: what it offers to the hooks of omni-core."""
