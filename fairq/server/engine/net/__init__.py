"""The traffic with clients and other servers: connections and their limits, tokens, workers' names, questions."""
