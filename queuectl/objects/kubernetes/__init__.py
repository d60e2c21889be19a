"""Kubernetes objects to the values of the domain: nodes, pods, requests, LimitRanges, ResourceQuotas."""
