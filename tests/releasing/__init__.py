"""How a release is made: scripts/release, of which docs/releasing.md is the manual."""
