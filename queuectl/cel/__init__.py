"""Expressions of CEL, as the API server and kube-scheduler evaluate them.

The library is the C++ implementation of CEL. Kubernetes has the Go implementation of the same specification, with its own libraries.
"""
