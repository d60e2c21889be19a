"""Planning of files: their documents become the records that the watch would deliver, and the entries that a ledger would have."""
