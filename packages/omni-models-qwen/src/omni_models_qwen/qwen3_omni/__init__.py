"""Qwen3-Omni: text, images, video and audio in; text and speech out."""
