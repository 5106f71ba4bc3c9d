"""MOSS-TTS Local: frames of codes made at once, by a small transformer inside each step of the large one."""
