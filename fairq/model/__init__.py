"""The nouns of fairq, and the rules that their values keep: one module for each subject."""
