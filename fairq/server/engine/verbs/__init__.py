"""The verbs: what each request does, one module per subject."""
