"""What an operator sees of a running pipeline: numbers, traces and the line of `--log-stats`."""
