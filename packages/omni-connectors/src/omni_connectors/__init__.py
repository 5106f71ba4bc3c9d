"""Connectors that carry payloads between the stages of an Omni pipeline."""
