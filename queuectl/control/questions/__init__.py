"""Questions that any replica answers with the planner: diagnoses, what-if, previews and reads."""
