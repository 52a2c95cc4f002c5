-- needs: accounts, arrivals, batches, calls, feeds, places, records, task_options
--
-- Updates batches (tasks/batches.lua) when their tasks change, and enqueues callback tasks.

-- Gives free batch slots to pending tasks, the most urgent first; not while the batch is being cancelled.
local function refill(call, id, batch)
  local free = batch.max_running > 0 and math.min(batch.max_running - batch.admitted, TASKS_PER_CALL) or 0
  if free > 0 and batch.state == CLOSED and redis.call('ZSCORE', call.prefix .. 'cancelling', id) then return end
  local ids = free > 0 and redis.call('ZRANGE', call.prefix .. 'pending:' .. id, 0, free - 1) or {}
  if #ids == 0 then return end
  local account = accounts.touch_named(call, batch.tenant)
  redis.call('ZREM', call.prefix .. 'pending:' .. id, unpack(ids))
  accounts.count(call, account, 'pending', -#ids)
  task_options.note_ready(call, ids)
  places.put_ready(call, account, ids)
end

-- Gives free batch slots to pending tasks before others ask for them.
function batch_ends.refill(call)
  for id, batch in pairs(call.batches or {}) do
    if batch then refill(call, id, batch) end
  end
end

-- Enqueues a callback task, if there is to be one, unless a task has its id, or has had its payload.
local function call_back(call, id, batch, event)
  local task, size = batches.callback_id(id, batch, event), batch['on_' .. event]
  if size == 0 or redis.call('HEXISTS', call.prefix .. 'tasks', task) == 1
      or redis.call('HSTRLEN', call.prefix .. 'payloads', task) ~= size then
    return
  end
  local new, terms = arrivals.new(batch.tenant), arrivals.read_options(call, '')
  terms.stored_bytes, terms.name = size, batch[event .. '_name']
  arrivals.admit(call, new, task, '', terms)
  arrivals.store(call, new)
end

-- Deletes the payload of a callback that will not come, unless a stored task with that id uses it.
local function drop_payload(call, id, batch, event)
  if batch['on_' .. event] == 0 then return end
  local task = batches.callback_id(id, batch, event)
  if not records.is_large(redis.call('HGET', call.prefix .. 'tasks', task)) then
    redis.call('HDEL', call.prefix .. 'payloads', task)
  end
end

-- Ends these callbacks of a batch: they have been stored, or will not be.
local function end_callbacks(call, id, batch, events)
  for _, event in ipairs(events) do drop_payload(call, id, batch, event) end
  batches.free_callbacks(call, id, batch, events)
end

-- Forgets a batch, its callbacks that were not stored, and its list of results.
function batch_ends.forget(call, id, batch)
  if batch.result_bytes > 0 then redis.call('UNLINK', batches.results_key(call, id)) end
  end_callbacks(call, id, batch, CALLBACKS)
  accounts.add_bytes(call, accounts.named(call, batch.tenant), -batches.bytes_of(id, batch))
  call.batches[id] = nil
end

local function complete(call, id, batch)
  batch.state, batch.completed_at = COMPLETE, call.now
  redis.call('ZADD', call.prefix .. 'completed', call.now, id)
  calls.announce(call, 'batch ' .. id)
  if batch.events > 0 then
    local counts = string.format('%.0f %.0f %.0f %.0f', batch.done, batch.dead, batch.cancelled, batch.expired)
    feeds.tell(call, accounts.named(call, batch.tenant), 'batch_completed', id, 0, counts)
  end
  call_back(call, id, batch, 'complete')
  if batch.done == batch.total then call_back(call, id, batch, 'success') end
  local may_succeed = batch.dead > 0 and batch.cancelled == 0  -- its dead letters may be replayed
  end_callbacks(call, id, batch, may_succeed and {'complete', 'death'} or CALLBACKS)
end

-- Brings the batches of changed tasks up to date: slots for pending tasks, completion, callbacks. Before `close`.
function batch_ends.finish(call)
  if not call.batches then return end
  local ids = {}
  for id, batch in pairs(call.batches) do
    if batch then ids[#ids + 1] = id end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local batch = call.batches[id]
    if batch.state ~= COMPLETE then
      refill(call, id, batch)
      if batch.dead > 0 and batch.on_death > 0 then
        call_back(call, id, batch, 'death')
        end_callbacks(call, id, batch, {'death'})
      end
      if batch.state == CLOSED and batch.done + batch.dead + batch.cancelled == batch.total then
        complete(call, id, batch)
      end
    end
    redis.call('HSET', call.prefix .. 'batches', id, BATCH.pack(batch))
  end
end
