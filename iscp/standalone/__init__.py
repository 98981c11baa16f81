"""Jobs without a cluster: one run, or one that goes on."""
