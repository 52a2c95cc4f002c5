"""An OpenAPI document against a server: one good and one bad request of each route, and what they are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import jsonschema_rs

VALUES: dict[str, Any] = {  # of parameters and of required fields
    "queue": "q", "tenant": "ada", "id": "ada/t", "ids": ["ada/t"], "name": "nightly", "worker": "w", "payload": 1,
    "every": 60, "settings": {"max_attempts": 3}, "weight": 2, "limits": {"max_running": 5}, "opening_hours": "",
    "tasks": [{"id": "made", "payload": 1}], "url": "https://a.example/in", "role": "worker", "hash": "0" * 64,
    "paused": True,
    "settlements": [{"action": "ack", "id": "ada/t", "lease": 1}], "lease": {"queue": "q", "id": "ada/t", "lease": 1},
}  # fmt: skip


def faults(document: Mapping[str, Any], schema: Any, value: Any) -> list[str]:
    whole = {"allOf": [schema], "components": document["components"]}
    return [f"{each.instance_path}: {each.message}"[:300] for each in jsonschema_rs.iter_errors(whole, value)]


def body_of(document: Mapping[str, Any], operation: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return a body with what an operation requires, or None if it takes none."""
    if "requestBody" not in operation:
        return None
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    schema = schema.get("anyOf", [schema])[0]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    also = ["every"] if "every" in schema["properties"] else []  # or `cron`
    return {name: values[name] for name in (*schema.get("required", []), *also)}


def check_answer(document: Mapping[str, Any], operation: Mapping[str, Any], answer: httpx.Response) -> None:
    """Check that the document has an answer's status, its kind and its body."""
    found = operation["responses"][str(answer.status_code)]
    if not answer.content:
        assert "content" not in found
        return
    kind = answer.headers["content-type"].partition(";")[0]
    assert faults(document, found["content"][kind]["schema"], answer.json()) == [], answer.text


async def check_routes(
    client_of: Callable[[str], httpx.AsyncClient], document: Mapping[str, Any], **more: Any
) -> set[tuple[str, str]]:
    """Send a good and a bad request to each route of a document; returns the routes that have done something."""
    done = set[tuple[str, str]]()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            values = VALUES | more | ({"id": "abcd"} if "tokens" in path else {})
            values |= {"id": "ada/t", "lease": 1} if path.endswith("/results") else {}
            needed = [each for each in operation.get("parameters", []) if each.get("required")]
            query = {each["name"]: values[each["name"]] for each in needed if each["in"] == "query"}
            names = {each["name"]: str(values[each["name"]]).replace("/", "%2F") for each in needed}
            body, url = body_of(document, operation, values), path.format(**names)
            if body is not None:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                assert faults(document, schema, body) == [], where
            client, headers = client_of(path), {"Accept": "application/json"}  # a stream would not end
            good = await client.request(method, url, params=query, json=body, headers=headers)
            assert good.is_success or good.status_code in (403, 404, 409), (where, good.text)
            check_answer(document, operation, good)
            if body is None:
                query |= {"colour": "red"}
            else:
                body |= {"colour": "red"}
            bad = await client.request(method, url, params=query, json=body, headers=headers)
            assert (bad.status_code, bad.json().get("field")) == (400, "colour"), (where, bad.text)
            check_answer(document, operation, bad)
            if good.is_success:
                done.add((method.upper(), path))
    return done
