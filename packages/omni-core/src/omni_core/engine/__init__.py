"""The engine: the orchestrator in the server's process, and what runs in the stages' processes."""
