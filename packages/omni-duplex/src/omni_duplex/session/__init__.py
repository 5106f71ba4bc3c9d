"""One session: a state that only a pure reducer changes, and an actor that carries out what the reducer wants."""
