"""What clients and servers say: connections and their limits, tokens, workers' names, questions among servers."""
