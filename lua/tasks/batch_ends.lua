-- needs: accounts, arrivals, batches, calls, feeds, places
--
-- What follows for batches (tasks/batches.lua) when their tasks change, callback tasks among it.

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

-- Enqueues a callback task, if there is to be one, unless a task has its id, or has had its payload.
local function call_back(call, id, b, event)
  local task, size = batches.callback_id(id, b, event), b['on_' .. event]
  if size == 0 or redis.call('HEXISTS', key(call, 'tasks'), task) == 1
      or redis.call('HSTRLEN', key(call, 'payloads'), task) ~= size then
    return
  end
  local new, terms = arrivals.new(b.tenant), arrivals.plain_terms(call)
  terms.stored_bytes = size
  arrivals.admit(call, new, task, '', terms)
  arrivals.store(call, new)
end

local function complete(call, id, b)
  b.state, b.completed_at = COMPLETE, call.now
  redis.call('ZADD', key(call, 'completed'), call.now, id)
  calls.announce(call, 'batch ' .. id)
  if b.events > 0 then
    local counts = string.format('%.0f %.0f %.0f %.0f', b.done, b.dead, b.cancelled, b.expired)
    feeds.tell(call, accounts.named(call, b.tenant), 'batch_completed', id, 0, counts)
  end
  call_back(call, id, b, 'complete')
  if b.done == b.total then call_back(call, id, b, 'success') end
  for _, event in ipairs(CALLBACKS) do
    local task = batches.callback_id(id, b, event)
    if b['on_' .. event] > 0 and redis.call('HEXISTS', key(call, 'tasks'), task) == 0 then
      redis.call('HDEL', key(call, 'payloads'), task)
    end
  end
end

-- Brings the batches of changed tasks up to date: slots for pending tasks, completion, callbacks. Before `close`.
function batch_ends.finish(call)
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
      if b.dead > 0 and b.on_death > 0 then
        call_back(call, id, b, 'death')
        accounts.add_bytes(call, accounts.touch_named(call, b.tenant), -b.on_death)
        b.on_death = 0
      end
      if b.state == CLOSED and b.done + b.dead + b.cancelled == b.total then complete(call, id, b) end
    end
    redis.call('HSET', key(call, 'batches'), id, BATCH.pack(b))
  end
end
