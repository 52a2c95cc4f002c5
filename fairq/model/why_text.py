"""Why a task waits, as sentences."""

from __future__ import annotations

from collections.abc import Iterator

from fairq.model.texts import moment_of, say_span
from fairq.model.waiting import Cause, Why
from fairq.model.workers import SilentWorker, WorkerState


def say_why(why: Why) -> Iterator[str]:
    """Yield the lines to print: the task's state, its causes, its start."""
    if why.state not in ("ready", "pending", "delayed"):
        yield f"{why.id} is {why.state}: it does not wait."
        yield from map(say_silence, why.silent)
        return
    yield f"{why.id} is {why.state}" + (", and waits:" if why.causes else ", and about to start.")
    for cause in why.causes:
        yield f"- {_say_cause(cause, why)}"
    if why.lost_leases:
        yield _say_lost_leases(why)
    yield from map(say_silence, why.silent)
    if why.starts_at_ms is not None and why.causes:
        yield f"It may start {_moment(why.starts_at_ms, why.now_ms)}, if nothing changes."
    elif why.causes:
        yield "Its start cannot be estimated."


def say_silence(silent: SilentWorker | WorkerState) -> str:
    """Say which worker is silent, and what is known of it."""
    return f"{silent.worker} {say_silent(silent)}"


def say_silent(silent: SilentWorker | WorkerState) -> str:
    """Describe a silent worker."""
    lost = f", lost {_tasks(silent.lost)}" if silent.lost else ""
    held = f", holds {_tasks(silent.held)}" if silent.held or not lost else ""
    return f"silent for {say_span(silent.silent_ms)}{held}{lost}"


def _tasks(count: int) -> str:
    return f"{count:,} task{'s' * (count != 1)}"


def _say_lost_leases(why: Why) -> str:
    most, often = why.max_lost_leases, "once" if why.lost_leases == 1 else f"{why.lost_leases} times"
    alone = ", so it runs alone next time" if why.runs_alone else ""
    return f"Its worker's process died {often}{f' (of at most {most})' if most else ''} while it ran{alone}."


def say_causes(why: Why) -> str:
    """Say in one line why a task waits; empty if it does not."""
    return "; ".join(_say_cause(cause, why) for cause in why.causes)


def _say_cause(cause: Cause, why: Why) -> str:
    at_least = "" if why.is_ahead_exact else "at least "
    whom = "the queue" if cause.startswith("queue") else "its tenant"
    among = "its batch" if why.state == "pending" else "its tenant"
    until = f" until {_moment(why.until_ms, why.now_ms)}" if why.until_ms else ""
    match cause:
        case "queue_repairing":
            return "the queue is being repaired; if the repair was interrupted, run `fairq queues repair` again"
        case "queue_paused" | "tenant_paused":
            return f"{whom} is paused until an operator resumes it"
        case "queue_closed" | "tenant_closed":
            return f"{whom} is outside its opening hours{until}"
        case "start":
            return f"its start time has not come{until}"
        case "retry":
            what = "its last lease was lost" if why.was_lost else "an attempt failed"
            return f"{what}, and it waits for the next attempt{until}"
        case "no_worker":
            if why.silent:
                return "all workers of the queue are silent"
            return "no worker is attached to the queue" + (
                f"; those that are take tasks of {', '.join(why.served)}" if why.served else ""
            )
        case "rate":
            return f"its tenant has started as many tasks as it may ({why.rate:g} a second){until}"
        case "max_running":
            return f"its tenant has as many tasks running ({why.running}) as it may ({why.max_running})"
        case "batch_max_running":
            return f"its batch has as many tasks running, or next to run, as it may ({why.batch_max_running})"
        case "backlog" if why.ahead:
            many = "1 other task" if why.ahead == 1 else f"{why.ahead:,} other tasks"
            turns = (
                f"; {why.group_ahead:,} of its own group, one of {why.groups:,} that take turns" if why.groups else ""
            )
            return f"{at_least}{many} of {among} come{'s' * (why.ahead == 1)} before it{turns}"
        case "backlog":
            return f"its tenant's own tasks use all {round(why.slots, 1):g} slots"
        case "reserve":
            return f"{why.kept} of {why.kept_of} slots are kept for tenants with nothing running"
        case "share":
            of = f"{why.share:.1%} of {round(why.slots, 1):g}"
            return f"other tenants' tasks use the slots; its tenant's share is {of}"


def _moment(at_ms: int, now_ms: int) -> str:
    """Write a future time, and how far off it is."""
    return f"{moment_of(at_ms).isoformat(' ', 'seconds').removesuffix('+00:00')} UTC (in {say_span(at_ms - now_ms)})"
