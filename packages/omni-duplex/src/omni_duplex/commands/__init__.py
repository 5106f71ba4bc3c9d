"""Commands of the `omni` program that omni-duplex brings."""
