"""Deploy configuration: read, merge, resolve."""
