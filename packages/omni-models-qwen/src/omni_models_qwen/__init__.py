"""Qwen speech and omni models as plugins for Omni."""
