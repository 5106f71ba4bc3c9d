"""The command `omni talk`: a conversation with a server, from a microphone or a file."""
