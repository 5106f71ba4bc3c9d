"""PersonaPlex, a frame-synchronous model on Moshi's network: it hears and speaks 80 ms at a time, always both."""
