"""Etcd: its client, and the keys of members, owners and builds in it."""
