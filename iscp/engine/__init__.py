"""One iteration: read what changed, net it, hand it to the consumers, apply it, report."""
