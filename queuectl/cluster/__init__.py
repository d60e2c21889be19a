"""The Kubernetes adapter: the only package that sends requests to an API server.

- :mod:`client`: configuration, credentials, TLS and the one function through which every request goes
- :mod:`resources`: what is watched, where it lives in the API and which reader turns it into a record
- :mod:`reflector`: list and watch of one resource, as batches of deltas
- :mod:`stream`: the bytes of a watch or a list to deltas
- :mod:`writes`: merge patches and Events
- :mod:`lease`: the Lease
- :mod:`server`: the version of the server, and what differs between versions
- :mod:`review`: checks of the server's version and of the admission policies
- :mod:`apply`: set-up documents by server-side apply
- :mod:`adapter`: all of it behind the Protocol ``Cluster`` of the control loop
"""
