"""RECEIVING.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from fairq import webhook
from fairq.webhook.answers import MAX_RETRY_AFTER_S, Answer, judge
from fairq.webhook.deliverer import KEEP_ALIVE_S, MAX_IDLE, headers_of
from fairq.webhook.network import ANSWER_BYTES
from fairq.webhook.signature import TOLERANCE_S, Signer, write_secret
from fairq.webhook.urls import UrlTemplate
from tests.store.cases import case
from tests.test_documents import table_after

from .harness import NOW, URL, task

TEXT = (Path(webhook.__file__).parent / "RECEIVING.md").read_text(encoding="utf-8")


def test_the_headers_are_those_that_are_sent() -> None:
    signer = Signer.parse([write_secret(b"s" * 32)])
    sent = headers_of(task(name="kind"), UrlTemplate.parse(URL).for_tenant("ada"), b"null", signer, NOW)
    assert [row["header"].strip("`") for row in table_after(TEXT, "| header |")] == list(sent)


def test_the_answers_do_what_is_said() -> None:
    for row in table_after(TEXT, "| answer |")[:3]:
        with case(row):
            outcomes = {"done": "delivered", "a dead letter": "rejected", "tried again": "retry"}
            words = next(words for words in outcomes if row["effect on the task"].startswith(words))
            found = re.match(r"\d", row["answer"])
            statuses = [int(row["answer"].replace("xx", "04"))] if found else [100, 302, 400, 409, 411, 500]
            assert {judge(Answer(status), "h", NOW).outcome for status in statuses} == {outcomes[words]}


def test_the_limits_are_those_of_the_code() -> None:
    assert f"more than {TOLERANCE_S:g} s from now" in TEXT
    assert MAX_RETRY_AFTER_S == 86_400
    assert "at most a day" in TEXT
    guide = (Path(webhook.__file__).parents[1] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    assert f"kept for {KEEP_ALIVE_S:g} s for further tasks of the same URL, at most {MAX_IDLE}." in guide
    assert f"over {ANSWER_BYTES} bytes fails the attempt" in guide


def test_the_python_in_it_runs() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    scope: dict[str, object] = {}
    exec(compile(source, "RECEIVING.md", "exec"), scope)
    secret = write_secret(b"s" * 32)
    scope["verify"] = lambda body, headers, _: webhook.verify(body, headers, secret)
    receive = scope["receive"]
    assert callable(receive)
    assert receive(b"{}", {}) == 401
