"""The OpenAI-compatible HTTP server of Omni."""
