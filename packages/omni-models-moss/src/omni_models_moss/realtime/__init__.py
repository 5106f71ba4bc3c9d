"""MOSS-TTS Realtime: text goes in while speech comes out."""
