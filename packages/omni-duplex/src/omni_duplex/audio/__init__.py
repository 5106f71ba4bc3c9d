"""Formats, rates and units of audio."""
