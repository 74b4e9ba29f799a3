"""Files and batches: JSONL in, JSONL out, on disk; run beside the requests of clients, behind them in every queue."""
