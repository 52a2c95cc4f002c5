-- needs: accounts, calls, priorities, task_options
--
-- Batches: one request of many tasks, perhaps with a limit on how many of them run at once.
--
-- A batch is open (tasks are added), closed (no more are), or complete: closed, and all its tasks have ended. It
-- becomes complete inside the call that ends its last task. The same call publishes the notice and stores the callback
-- tasks. Replaying a dead letter later makes the batch closed again until that task has ended too. Each callback task
-- is stored once. The success callback may still come after completion, as long as batch and dead letters are kept.
--
-- Where there is a limit, a task needs a *batch slot* to become ready, and keeps it while it is leased. Without one it
-- is pending, in `pending:<batch>` by priority and then in order. A task that ends, or is put off, gives its slot back,
-- and when the call ends `refill` (tasks/batch_ends.lua) hands free slots to pending tasks. So a lease that is given
-- back, or was held by a worker that died, gets its own slot again.
--
-- Callback tasks may read the results of members. A batch with callbacks lists its members that have a kept result in
-- `batch_results:<batch>`, in the order in which they were added. Each entry has the time until which the result is
-- kept, because another task may have the same id later.

local SETS_BYTES = 2000  -- at most, of the sets of members, pending and ready tasks, not counting ids
local RESULTS_BYTES, NAMED_BYTES = 1000, 128  -- at most, of the set of results and of each entry in it

-- A batch, to be changed: `batch_ends.finish` writes it back. nil where there is none.
function batches.find(call, id)
  local known = table_in(call, 'batches')
  if known[id] == nil then
    local packed = redis.call('HGET', call.prefix .. 'batches', id)
    known[id] = packed and BATCH.unpack(packed)
  end
  return known[id] or nil
end

-- What a batch counts among its tenant's bytes, until it is forgotten: itself, its sets, and each callback task that
-- may still come, as that will count: nothing can refuse it then. One of an older version counts itself and payloads.
function batches.bytes_of(id, batch)
  local bytes = accounts.bytes_of(id, (batch.reserves == 1 and SETS_BYTES or 0) + batch.result_bytes)
  for _, event in ipairs(CALLBACKS) do
    local size = batch['on_' .. event]
    if size > 0 and batch.reserves == 1 then
      local length = HEADER.size + #batch.tenant + #batch[event .. '_name'] + size
      bytes = bytes + accounts.bytes_of(batches.callback_id(id, batch, event), length)
    else
      bytes = bytes + size
    end
  end
  return bytes
end

-- Reserves bytes for the list of results of a new batch if it has callbacks.
function batches.name_results(batch)
  for _, event in ipairs(CALLBACKS) do
    if batch['on_' .. event] > 0 then batch.result_bytes = RESULTS_BYTES end
  end
end

-- Marks these callbacks of a batch as stored or cancelled.
function batches.free_callbacks(call, id, batch, events)
  local before = batches.bytes_of(id, batch)
  for _, event in ipairs(events) do batch['on_' .. event] = 0 end
  accounts.add_bytes(call, accounts.touch_named(call, batch.tenant), batches.bytes_of(id, batch) - before)
end

-- The batch of a task; nil if it has none or the batch is complete.
function batches.of_task(call, id)
  if call.queue.tasks_with_options == 0 then return nil end
  local asked = task_options.of(call, id)
  local batch = asked.batch ~= '' and batches.find(call, asked.batch)
  if not batch or batch.state == COMPLETE then return nil end
  return batch.created_at == asked.opened_at and batch or nil  -- else it is a later one of that name
end

-- The id of a callback task. Its payload stands in `payloads` from the opening of the batch on; BATCH says how
-- long it is.
function batches.callback_id(id, batch, event)
  return string.format('%s-%s-%.0f', id, event, batch.created_at)
end

local function members_key(call, id)
  return call.prefix .. 'members:' .. task_options.of(call, id).batch
end

function batches.results_key(call, id)
  return call.prefix .. 'batch_results:' .. id
end

function batches.pending_key(call, id)
  return call.prefix .. 'pending:' .. task_options.of(call, id).batch
end

-- The entry of a task that is done now among the results of its batch, and the batch; nil if it gets no entry.
local function result_name(call, id)
  local asked = task_options.of(call, id)
  local batch = asked.result_ttl > 0 and batches.of_task(call, id)
  if not batch or batch.result_bytes == 0 then return nil end
  return string.format('%.0f %s', call.now + asked.result_ttl, id), batch
end

-- What the name of its result will count, if the task is done now.
function batches.bytes_of_result(call, id)
  local name = result_name(call, id)
  return name and NAMED_BYTES + #name or 0
end

-- Lists the result of a task that is done. A running task of a cancelled batch is not a member any more: it comes last.
function batches.name_result(call, account, id)
  local name, batch = result_name(call, id)
  if not name then return end
  local order = redis.call('ZSCORE', members_key(call, id), id)
  if not order then
    batch.sequence = batch.sequence + 1
    order = batch.sequence
  end
  redis.call('ZADD', batches.results_key(call, task_options.of(call, id).batch), order, name)
  batch.result_bytes = batch.result_bytes + NAMED_BYTES + #name
  accounts.add_bytes(call, account, NAMED_BYTES + #name)
end

-- Of ids that are to become ready, those that get a batch slot; the others become pending.
function batches.take_slots(call, account, ids)
  local with_slots = {}
  for _, id in ipairs(ids) do
    local batch = batches.of_task(call, id)
    if batch and batch.max_running > 0 and batch.admitted >= batch.max_running then
      batch.sequence = batch.sequence + 1
      local score = priorities.score(task_options.of(call, id).priority, batch.sequence)
      redis.call('ZADD', batches.pending_key(call, id), score, id)
      accounts.count(call, account, 'pending', 1)
    else
      if batch then batch.admitted = batch.admitted + 1 end
      with_slots[#with_slots + 1] = id
    end
  end
  return with_slots
end

function batches.give_slot_back(call, id)
  local batch = batches.of_task(call, id)
  if batch then batch.admitted = batch.admitted - 1 end
end

function batches.take_out_pending(call, account, id)
  if not batches.of_task(call, id) or redis.call('ZREM', batches.pending_key(call, id), id) == 0 then return false end
  accounts.count(call, account, 'pending', -1)
  return true
end

-- Records the end of a task for its batch and for requests that wait for it. `how`: done, dead, expired (also dead) or
-- cancelled.
function batches.note_end(call, id, how)
  if task_options.of(call, id).result_ttl > 0 then calls.announce(call, 'end ' .. id) end
  local batch = batches.of_task(call, id)
  if not batch then return end
  batch[how] = batch[how] + 1
  if how == 'expired' then batch.dead = batch.dead + 1 end
  redis.call('ZREM', members_key(call, id), id)
end

function batches.count_running(call, id, count)
  local batch = batches.of_task(call, id)
  if batch then batch.running = batch.running + count end
end

-- Adds a task to the members of its batch.
function batches.add_member(call, batch, id)
  batch.sequence = batch.sequence + 1
  redis.call('ZADD', members_key(call, id), batch.sequence, id)
end

-- Takes a replayed dead letter off the counts of its batch; `reason` is why it died. False if the batch is no longer
-- known: then there is nothing to count.
function batches.count_revived(call, id, reason)
  local asked = task_options.of(call, id)
  if asked.batch == '' then return true end
  local batch = batches.find(call, asked.batch)
  if not batch or batch.created_at ~= asked.opened_at then return false end
  if batch.state == COMPLETE then
    batch.state, batch.completed_at = CLOSED, 0
    redis.call('ZREM', call.prefix .. 'completed', asked.batch)
  end
  batch.dead = batch.dead - 1
  if reason == EXPIRED then batch.expired = batch.expired - 1 end
  batches.add_member(call, batch, id)
  return true
end
