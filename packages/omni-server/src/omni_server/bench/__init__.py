"""`omni bench`: put load on a server and say how it answers."""
