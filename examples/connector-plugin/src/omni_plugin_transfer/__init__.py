"""A connector over Mooncake's TransferEngine, as a third party would write it."""
