-- needs: batches, leases, records, task_options
--
-- The state of each task.

local EARLIEST = 2 ^ 40  -- a time; an earlier build wrote a lower `began_at` for a run that waits: then it is unknown

-- Since when a ready task has been ready (0: unknown): since it was enqueued, or since its start. If it has a run, the
-- run has that time: an attempt ended, a dead letter was replayed, or the clock went back. If it waited for a batch
-- slot, its options have the time at which it got one.
function standing.ready_since(call, id, header, run)
  local since = run and run.began_at or math.max(header.enqueued_at, header.start_at)
  return since >= EARLIEST and math.max(since, task_options.of(call, id).ready_at) or 0
end

-- Of a leased task: the deadline of its lease, and the name of the claim that took it.
local function lease_facts(call, id, run)
  local bundle = leases.bundle(call, run.lease)
  local at = run.is_extended == 1 and redis.call('ZSCORE', call.prefix .. 'extended', id)
    or redis.call('ZSCORE', call.prefix .. 'leases', leases.field(run.lease))
  return at and text(at + call.queue.origin) or '0', bundle and bundle.claim or ''
end

local function state_of(call, id, record, run, packed_death)
  if packed_death then
    local death = DEATH.unpack(packed_death)
    return {'dead', death.tenant, death.attempts, text(death.died_at), REASONS[death.reason], death.error,
      death.lost_leases, 0}
  end
  if not records.is_task(record) then
    return {records.read_mark(record) or 'unknown', '', 0, '0', '', '', 0, 0}
  end
  local header, attempt, message, lost = records.read(record), 0, '', 0
  local tenant = header.tenant
  if run then attempt, message, lost = run.attempt, run.error, run.lost_leases end
  if run and leases.is_leased(run.state) then
    local at, claim = lease_facts(call, id, run)
    return {'leased', tenant, attempt, at, claim, message, lost, run.lease}
  end
  if task_options.of(call, id).batch ~= '' and redis.call('ZSCORE', batches.pending_key(call, id), id) then
    return {'pending', tenant, attempt, '0', '', message, lost, 0}
  end
  local start_at = redis.call('ZSCORE', call.prefix .. 'delayed:' .. tenant, id)
  local at = math.floor(start_at or standing.ready_since(call, id, header, run))
  return {start_at and 'delayed' or 'ready', tenant, attempt, text(at), '', message, lost, 0}
end

-- The reply of `tasks` (inspect/states.lua).
function standing.of(call, ids)
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'ids') end
  local found, deaths, out = records.of(call, ids), redis.call('HMGET', call.prefix .. 'dead', unpack(ids)), {}
  leases.read_runs(call, ids)
  for i, id in ipairs(ids) do out[i] = state_of(call, id, found[i], leases.run_of(call, id), deaths[i]) end
  return out
end
