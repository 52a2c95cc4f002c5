"""Webhooks: the worker that posts tasks to a URL, and what their receivers need."""

from fairq.webhook.signature import BadSignature, verify

__all__ = ["BadSignature", "verify"]
