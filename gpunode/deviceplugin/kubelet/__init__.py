"""The plugin's talk with its kubelet: the device plugin protocol in all its versions, and pod resources."""
