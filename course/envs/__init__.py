"""Environments: something that answers an action by a rule, the same way every time."""
