"""Delivery of events to receivers: mail, webhooks and Slack."""
