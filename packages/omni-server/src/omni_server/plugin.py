"""The plugin of omni-server: what it offers to the hooks of omni-core."""
