"""The nouns of fairq and the rules of their values: one module for each subject."""
