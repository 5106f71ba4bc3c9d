"""MOSS-TTS models as plugins for Omni."""
