"""Builds in etcd: what is still to be built of first snapshots, written by the owner and followed by all nodes."""
