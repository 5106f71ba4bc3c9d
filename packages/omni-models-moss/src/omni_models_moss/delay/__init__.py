"""The talkers of the delay pattern: MOSS-TTS, TTSD, VoiceGenerator and SoundEffect."""
