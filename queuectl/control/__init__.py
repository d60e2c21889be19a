"""The asyncio process of the controller: the leader, questions that any replica answers, and the composition of adapters."""
