"""The command line. Client commands speak REST only; what runs a server is imported when it is run.

Exit codes: 0 done, 1 failure, 2 usage or bad input, 3 not found, 4 conflict.
"""
