"""What the talkers of this package share: from rows to frames of codes, and from frames to the stage that decodes them."""
