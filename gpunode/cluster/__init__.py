"""Everything that talks to the Kubernetes API. The only room that imports kubernetes.

Objects are plain dicts as the API speaks them; every failure is a ClusterError.
"""
