"""A fleet on its way to proven GPU nodes: stages that take and return one value per host, between commands and rooms."""
