"""The plugin of omni-models-moss: what it offers to the hooks of omni-core. This version offers nothing yet."""
