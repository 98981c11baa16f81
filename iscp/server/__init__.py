"""The services of a node: admin calls, calls between nodes, access, the page, and JSON over HTTP."""
