"""The OpenAPI document of the operators' paths."""

from __future__ import annotations

from functools import cache

from fairq.server.web.admin.routes import QUEUE, ROWS
from fairq.server.web.http.openapi import document_of, paths_of
from fairq.server.web.http.schema import Schema


@cache
def make_document() -> Schema:
    """Make the document."""
    paths = paths_of(ROWS)
    added = paths[f"{QUEUE}/webhooks"]["post"]["responses"]
    added["201"] = added["200"] | {"description": "Created."}
    return document_of("fairq, for operators", paths)
