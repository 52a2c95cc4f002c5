"""What the model says of itself, in the words of the verbs that inspect."""

from __future__ import annotations

from fairq.model.queue.accounts import OUT
from fairq.model.queue.model import Model
from fairq.store import library


def queue_state(model: Model) -> dict[str, float]:
    everyone = model.tenants.values()
    return {
        **model.settings,
        **model.counts,
        "now": model.now,
        "clock": model.stored_clock,
        "running": model.running,
        "servable": model.servable,
        "cursor": model.cursor,
        "origin": model.origin,
        "epoch_at": model.epoch_at,
        "estimate_sq": model.estimate_sq,
        "sweeping": model.sweeping,
        "level": model.stored_level,
        "last_lease": model.last_lease,
        "numbers": model.numbers,
        "minute": model.minute,
        "remembered": len(model.marks),
        "sequence": model.sequence,
        "stage": 1,  # made
        "kept_until": model.kept_until,
        "weight_sum": model.weight_sum,
        "hungry": model.hungry,
        "blocked": model.blocked,
        "limited": int("" in model.own),
        "epoch": model.epoch,
        "estimate": model.estimate,
        "slots": model.slots,
        "loans": model.loans,
        "ready": sum(len(t.ready) for t in everyone),
        "delayed": sum(len(t.delayed) for t in everyone),
        "leased": len(model.leases),
        "dead": len(model.dead),
        "pending": sum(t.pending for t in everyone),
        "tasks_with_options": sum(task.options.has_rare_options for task in model.records.values()),
    }


def turns(model: Model) -> dict[str, dict[str, float]]:
    """Whose turn is when, as the store names tenants' priorities, groups and clocks."""
    return {
        f"{t.name}:{priority}": {"": line.clock} | {f":{group}": finish for group, finish in line.finish.items()}
        for t in model.tenants.values()
        for priority, line in t.ready.lines.items()
        if line.has_groups
    }


def share(model: Model, name: str) -> dict[str, float]:
    """What `tenants` says of a tenant at the time of the model's last call."""
    t = model.tenants[name]
    return {
        "weight": t.weight,
        "ready": len(t.ready),
        "pending": t.pending,
        "delayed": len(t.delayed),
        "leased": t.leased,
        "dead": t.dead,
        "done": t.done,
        "delivered": t.delivered + (0 if model.share else model.age_of(t)),
        "entitled": model.entitled_to(t),
        "is_eligible": int(t.slot != OUT),
        "blocked": t.blocked,
        "limited": int(name in model.own),
        "bytes": model.kept_by(t),
    }


def batch(model: Model, name: str) -> tuple[object, ...] | None:
    if not (b := model.batches.get(name)):
        return None
    counts = (b.max_running, b.total, b.running, b.done, b.dead, b.cancelled, b.expired)
    return (b.state, b.tenant, *counts, b.created_at, b.completed_at)


def batches(model: Model, tenant: str, state: str) -> dict[str, object]:
    """What `list_batches` says, all pages together."""
    chosen = (name for name, b in model.batches.items() if tenant in ("", b.tenant) and state in ("", b.state))
    return {name: batch(model, name) for name in chosen}


def task(model: Model, id: str, now: float) -> tuple[str, str, int, float, str, str, int]:
    model.open(now)
    state = model.state_of(id)
    where = state.worker or state.reason
    return (state.state, state.tenant, state.attempt, state.at_ms, where, state.error, state.lost_leases)


def schedules(model: Model) -> list[str]:
    return sorted(model.schedules, key=lambda field: (model.due_at(field), field))


def revision(packed: bytes) -> tuple[bytes, float, int, int, float]:
    """A schedule's revision in the model's words."""
    found, _ = library.formats()["SCHEDULE"].unpack(packed)
    return found["timing"], found["next_at"], found["misfire"], found["paused"], found["last_fired_at"]
