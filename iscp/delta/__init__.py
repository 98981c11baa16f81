"""Delta tables: their logs, reads of what changed, writes of targets, and the job log."""
