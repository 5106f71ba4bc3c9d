"""An example plugin for Omni: every character becomes a number, and every number a short tone."""
