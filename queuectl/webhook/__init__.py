"""The mutating webhook for API servers without MutatingAdmissionPolicy v1 (before Kubernetes 1.36).

It evaluates the CEL expressions of the MutatingAdmissionPolicies of deploy/, so both mutations have one source.
"""
