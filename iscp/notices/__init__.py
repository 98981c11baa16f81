"""All that leaves the cluster by itself: notifications, webhooks, traces, metrics and log lines."""
