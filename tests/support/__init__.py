"""What tests of several rooms share; nothing here is a test."""
