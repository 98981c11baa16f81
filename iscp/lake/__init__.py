"""The library: replicas, views, feeds and indexes kept by calls in one's own program, without a node."""
