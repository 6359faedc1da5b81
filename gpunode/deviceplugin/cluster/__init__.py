"""The plugin and the cluster's API server: node events, the node's annotation, the node's label."""
