"""The command line. Client commands call the REST API only. A command is imported when it runs.

Exit codes: 0 done, 1 failure, 2 wrong usage or input, 3 not found, 4 conflict, 5 not allowed.
"""
