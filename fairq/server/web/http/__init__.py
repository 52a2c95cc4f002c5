"""The HTTP API, for tenants, producers and workers (fairq/wire/HTTP.md); imported only where its listener is on."""
