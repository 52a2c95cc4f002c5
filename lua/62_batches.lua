-- Batches as their tenants handle them (18_batches.lua says what they are).
do

local MAX_RUNNING = 1000000
local BATCH_ID_BYTES = ID_BYTES - 26  -- a callback task's id ends in a word, at most `-complete`, `-`, and 16 digits

-- open_batch(keys, argv): open a batch; tasks are added by `enqueue`.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 tenant  4 id (1..229 bytes)  5 max_running (0: no limit)  then payloads
--         of callback tasks, each may be empty: 6 when it is complete  7 when it is and all its tasks were done  8 when
--         the first is dead  9 1 to tell its tenant's feed when it is complete, else 0
--   out   "ok" | "duplicate" (there is such a batch: unchanged). Refused with `quota_exceeded` where the tenant would
--         keep too much.
--   flags none: refused when the store is full
function verbs.open_batch(keys, args)
  local call, max_running = calls.open_made(keys, args), tonumber(args[5])
  check_tenant(args[3])
  check_id(args[4], BATCH_ID_BYTES)
  if not max_running or max_running < 0 or max_running > MAX_RUNNING or max_running % 1 ~= 0 then
    refuse('bad_request', 'max_running')
  end
  for i = 6, 8 do
    if #args[i] > 65535 then refuse('too_large', 'payload') end
  end
  if batches.find(call, args[4]) then return 'duplicate' end
  local b = {
    max_running = max_running, sequence = 0, total = 0, admitted = 0, running = 0, done = 0, dead = 0, cancelled = 0,
    created_at = call.now, completed_at = 0, state = OPENED, tenant = args[3], on_complete = args[6],
    on_success = args[7], on_death = args[8], events = args[9] == '1' and 1 or 0,
  }
  local t = accounts.named(call, args[3])
  arrivals.check_bytes(call, t, batches.bytes_of(b))
  accounts.touch(call, t)
  accounts.add_bytes(call, t, batches.bytes_of(b))
  calls.table_of(call, 'batches')[args[4]] = b
  batches.finish(call)
  calls.close(call)
  return 'ok'
end

local function find_batch(call, id)
  return batches.find(call, id) or refuse('not_found', 'batch')
end

-- close_batch(keys, argv): no more tasks are added; the batch is complete when its tasks have ended.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 id
--   out   the state it had: "open" | "closed" | "complete"
--   flags allow-oom
function verbs.close_batch(keys, args)
  local call = calls.open(keys, args)
  local b = find_batch(call, args[3])
  local previous = b.state
  if previous == OPENED then
    b.state = CLOSED
    batches.finish(call)
    calls.close(call)
  end
  return BATCH_STATES[previous]
end

-- cancel_batch(keys, argv): close a batch and cancel its tasks: some now, the others by the next ticks.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 id
--   out   the state it had: "open" | "closed" | "complete"
--   flags allow-oom
function verbs.cancel_batch(keys, args)
  local call = calls.open(keys, args)
  local b = find_batch(call, args[3])
  local previous = b.state
  if previous ~= COMPLETE then
    b.state = CLOSED
    redis.call('ZADD', key(call, 'cancelling'), 'NX', call.now, args[3])
    waiting.cancel_members(call, CHANGES_PER_CALL)
    settlements.close(call)
  end
  return BATCH_STATES[previous]
end

-- batches(keys, argv): how far batches are.
--   keys  1 prefix
--   argv  1 now  2 random_values  then ids (at most 500)
--   out   per id: {state, tenant, max_running, total, running, done, dead, cancelled, created_at_ms,
--         completed_at_ms (or 0)}; or {} if it does not exist
function verbs.batches(keys, args)
  local call, out = {prefix = keys[1]}, {}
  for i, id in ipairs(ids_in(args, 3, TASKS_PER_CALL)) do
    local b = batches.find(call, id)
    out[i] = b and {BATCH_STATES[b.state], b.tenant, b.max_running, b.total, b.running, b.done, b.dead, b.cancelled,
      text(b.created_at), text(b.completed_at)} or {}
  end
  return out
end

end
