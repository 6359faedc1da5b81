"""What the device plugin, the scheduler extender and the CLI share: documents, ids, and the plugin's configuration."""
