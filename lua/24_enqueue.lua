-- The verb `enqueue`; and what changes of tasks mean to their batches (18_batches.lua), which may enqueue too.

-- Gives free places to held tasks, the most urgent first; not while the batch is being cancelled.
local function refill(call, id, b)
  local free = b.cap > 0 and math.min(b.cap - b.admitted, TASKS_PER_CALL) or 0
  if free > 0 and b.state == CLOSED and redis.call('ZSCORE', key(call, 'cancelling'), id) then return end
  local ids = free > 0 and redis.call('ZRANGE', key(call, 'held:' .. id), 0, free - 1) or {}
  if #ids == 0 then return end
  local t = touch(call, b.tenant)
  redis.call('ZREM', key(call, 'held:' .. id), unpack(ids))
  count_held(call, t, -#ids)
  put_ready(call, t, ids)
end

-- Enqueues a task that was ordered when the batch was opened; its id is the batch's, `suffix`, and when that was.
local function call_back(call, id, b, suffix, payload)
  local task = string.format('%s%s-%.0f', id, suffix, b.created_at)
  if payload == '' or redis.call('HEXISTS', key(call, 'tasks'), task) == 1 then return end
  local arrivals = new_arrivals(b.tenant)
  admit(call, arrivals, task, payload, 0, 0, call.queue.max_attempts, PLAIN, 0)
  store_arrivals(call, arrivals)
end

local function complete(call, id, b)
  b.state, b.completed_at = COMPLETE, call.now
  redis.call('ZADD', key(call, 'completed'), call.now, id)
  announce(call, 'batch ' .. id)
  if b.events > 0 then tell(call, b.tenant, 'batch_completed', id, 0, '') end
  call_back(call, id, b, '-complete', b.on_complete)
  if b.done == b.total then call_back(call, id, b, '-success', b.on_success) end
end

-- What the call's changes mean to batches: places for the held, completion, callbacks. Comes before `close`.
local function finish_batches(call)
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
        b.on_death = ''
      end
      if b.state == CLOSED and b.done + b.dead + b.cancelled == b.total then complete(call, id, b) end
    end
    redis.call('HSET', key(call, 'batches'), id, pack_batch(b))
  end
end

-- enqueue(keys, argv): store tasks of one tenant; a task whose id is known is left as it is.
--   keys  1 prefix
--   argv  1 now  2 dice  3 tenant  then per task (at most 500): id, options (packed, see read_options), payload
--         Refused as a whole (`not_found` or `batch_closed`) where a batch is not the tenant's, or not open; and with
--         `quota_exceeded <limit> <ms until it may be tried again>` where the tenant would have too much waiting.
--   out   per task: "ok" | "duplicate" (id waiting, leased, dead or done not long ago)
--         | "duplicate <id>" (another task holds its dedupe key: not stored)
--         | "expired" (it would expire before it could start: not stored)
--   flags none: refused as a whole when the store is full
function verbs.enqueue(keys, args)
  local call = open_made(keys, args)
  local ids, outcomes = {}, {}
  check_tenant(args[3])
  for i = 4, #args, 3 do ids[#ids + 1] = args[i] end
  if #ids == 0 or #ids > TASKS_PER_CALL or #args % 3 ~= 0 then refuse('bad_request', 'tasks') end
  local known, arrivals = known_ids(call, ids), new_arrivals(args[3])
  for n, id in ipairs(ids) do
    local start_at, expires_at, max_attempts, extras, window = read_options(call, args[2 + 3 * n])
    if not known[id] then check_batch(call, args[3], extras) end
    outcomes[n] = known[id] and 'duplicate'
      or admit(call, arrivals, id, args[3 + 3 * n], start_at, expires_at, max_attempts, extras, window)
    if outcomes[n] == 'ok' then known[id] = true end
  end
  if #arrivals.records == 0 then return outcomes end
  check_quotas(call, arrivals)
  store_arrivals(call, arrivals)
  finish_batches(call)
  close(call)
  return outcomes
end
