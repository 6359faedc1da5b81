"""What is said between the plugin and the cluster's API server: events, an annotation of the node, a label of it."""
