"""What is said between the plugin and its kubelet: the device plugin protocol in all its versions, and which pod has what."""
