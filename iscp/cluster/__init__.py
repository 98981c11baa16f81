"""The cluster: its members, the owner that places shards, the nodes that take them, and builds by several nodes."""
