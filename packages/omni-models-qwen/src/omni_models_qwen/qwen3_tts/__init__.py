"""Qwen3-TTS 12 Hz: a talker that makes frames of 16 codes, and a codec that turns them into 24 kHz audio."""
