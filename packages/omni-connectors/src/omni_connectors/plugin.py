"""The plugin of omni-connectors: what it offers to the hooks of omni-core."""
