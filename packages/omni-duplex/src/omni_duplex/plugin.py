"""The plugin of omni-duplex: what it offers to the hooks of omni-core. This version offers nothing yet."""
