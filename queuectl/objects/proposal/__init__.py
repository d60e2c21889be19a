"""Proposes configuration for the nodes of a cluster: flavors, topologies, one ClusterQueue and its LocalQueues."""
