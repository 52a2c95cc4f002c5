"""The wing over the engine's verbs: the HTTP API, the operators' API and their dashboard."""
