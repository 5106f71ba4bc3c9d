"""Qwen2.5-Omni: text, images, video and audio in; text and speech out."""
