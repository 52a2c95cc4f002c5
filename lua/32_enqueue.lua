-- The verb `enqueue`; and what follows for batches (18_batches.lua) when their tasks change, callback tasks among it.
do

-- Gives free batch slots to pending tasks, the most urgent first; not while the batch is being cancelled.
local function refill(call, id, b)
  local free = b.max_running > 0 and math.min(b.max_running - b.admitted, TASKS_PER_CALL) or 0
  if free > 0 and b.state == CLOSED and redis.call('ZSCORE', key(call, 'cancelling'), id) then return end
  local ids = free > 0 and redis.call('ZRANGE', key(call, 'pending:' .. id), 0, free - 1) or {}
  if #ids == 0 then return end
  local t = accounts.touch_named(call, b.tenant)
  redis.call('ZREM', key(call, 'pending:' .. id), unpack(ids))
  batches.count_pending(call, t, -#ids)
  places.put_ready(call, t, ids)
end

-- Enqueues a callback task, unless its payload is empty; its id is `<batch><suffix>-<ms when the batch was opened>`.
local function call_back(call, id, b, suffix, payload)
  local task = string.format('%s%s-%.0f', id, suffix, b.created_at)
  if payload == '' or redis.call('HEXISTS', key(call, 'tasks'), task) == 1 then return end
  local new = arrivals.new(b.tenant)
  local terms = arrivals.plain_terms(call)
  terms.copies = {}  -- none, whatever webhooks there are
  arrivals.admit(call, new, task, payload, terms)
  arrivals.store(call, new)
end

local function complete(call, id, b)
  b.state, b.completed_at = COMPLETE, call.now
  redis.call('ZADD', key(call, 'completed'), call.now, id)
  calls.announce(call, 'batch ' .. id)
  if b.events > 0 then
    local counts = string.format('%.0f %.0f %.0f %.0f', b.done, b.dead, b.cancelled, b.expired)
    feeds.tell(call, b.tenant, 'batch_completed', id, 0, counts)
  end
  call_back(call, id, b, '-complete', b.on_complete)
  if b.done == b.total then call_back(call, id, b, '-success', b.on_success) end
end

-- Brings the batches of changed tasks up to date: slots for pending tasks, completion, callbacks. Before `close`.
function batches.finish(call)
  if not call.batches then return end
  local ids = {}
  for id, b in pairs(call.batches) do
    if b then ids[#ids + 1] = id end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local b = call.batches[id]
    if b.state ~= COMPLETE then
      refill(call, id, b)
      if b.dead > 0 and b.on_death ~= '' then
        call_back(call, id, b, '-death', b.on_death)
        local t = accounts.touch_named(call, b.tenant)
        accounts.add_bytes(call, t, -#b.on_death)
        b.on_death = ''
      end
      if b.state == CLOSED and b.done + b.dead + b.cancelled == b.total then complete(call, id, b) end
    end
    redis.call('HSET', key(call, 'batches'), id, BATCH.pack(b))
  end
end

-- Checks and decides on a task; returns its outcome, and the id under which it will be known, if any.
local function admit(call, new, id, payload, terms)
  arrivals.check_batch(call, new.name, terms.asked)
  arrivals.check_copies(call, terms, payload)
  local outcome, holder = arrivals.admit(call, new, id, payload, terms)
  if outcome == 'ok' then return outcome, id end
  if not holder or not terms.replaces then return outcome, nil end
  outcome = replacing.admit(call, new, {id = id, payload = payload, terms = terms}, holder)
  return outcome, outcome:match('^replaced (.*)$')
end

-- Decides on the tasks in the arguments (id, options and payload each), before the first write. Returns their outcomes,
-- of the first ones if all are too much for one call, and whether there is anything to be stored.
function arrivals.decide(call, new, args, first, last)
  local ids, seen, outcomes = {}, {}, {}
  local terms = {}  -- by packed options: those of most tasks of a call are the same
  for i = first, last, 3 do ids[#ids + 1] = args[i] end
  if #ids == 0 or #ids > TASKS_PER_CALL or (last - first) % 3 ~= 2 then refuse('bad_request', 'tasks') end
  local known = records.of(call, ids)
  for n, id in ipairs(ids) do
    check_id(id, ID_BYTES)
    local packed, payload = args[first + 3 * n - 2], args[first + 3 * n - 1]
    terms[packed] = terms[packed] or arrivals.read_options(call, packed)
    if known[n] or seen[id] then
      local taker = records.taker_of(known[n]) or seen[id]
      outcomes[n] = taker and taker ~= id and 'replaced ' .. taker or 'duplicate'
    else
      if arrivals.is_full(call, new) then break end
      outcomes[n], seen[id] = admit(call, new, id, payload, terms[packed])
    end
  end
  local has_new = #new.records > 0 or #new.replaced > 0
  if has_new then arrivals.check_quotas(call, new) end
  return outcomes, has_new
end

-- enqueue(keys, argv): store tasks of one tenant; a task whose id is known is left as it is.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 tenant  then per task (at most 500): id, options (packed, see OPTIONS in KEYS.md),
--         payload; last of all (may be left out: all servers) who is to hear of them: "covered", nobody, for the caller
--         claims as many tasks right behind this call; or "wake <server>", that one first
--         Refused as a whole (`not_found` or `batch_closed`) where a batch is not the tenant's, or not open; and with
--         `quota_exceeded <limit> <ms until it may be tried again>` where the tenant would have too much waiting.
--   out   per task (of the first ones, where copies for webhooks or long callbacks of many batches fill the call; the
--         others are for the next call):
--         "ok" | "duplicate" (id waiting, leased, dead or done not long ago)
--         | "duplicate <id>" (another task holds its dedupe key: not stored)
--         | "replaced <id>" (that task, which holds its dedupe key and waits, has taken what it asks for)
--         | "expired" (it would expire before it could start: not stored)
--   flags none: refused as a whole when the store is full
function verbs.enqueue(keys, args)
  local call, new = calls.open_made(keys, args), arrivals.new(args[3])
  check_tenant(new.name)
  local outcomes, has_new = arrivals.decide(call, new, args, 4, arrivals.read_hint(call, args))
  if not has_new then return outcomes end
  arrivals.store(call, new)
  replacing.store(call, new)
  batches.finish(call)
  calls.close(call)
  return outcomes
end

end
