"""Limits through the server: who may set and read them, what holds, and that they act on what is under way."""

from __future__ import annotations

import pytest
import trio

from .harness import OPERATOR, WORKER, Refused, Served, raw, tenant
