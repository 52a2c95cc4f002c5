-- Batches: one request of many tasks, perhaps with a cap on how many of them run at once.
--
-- A batch is open (tasks are added), closed (no more are), or complete: closed, and all its tasks have ended. It
-- becomes complete once, inside the call that ends its last task; what it then has to say (a notice, callback tasks) is
-- part of that call. Tasks that are replayed later are no longer its own.
--
-- Where there is a cap, a task needs a *place* to become ready, and keeps it while it is leased. Without one it is
-- held, in `held:<batch>` by priority and then in order. Whoever ends, or is put off, gives its place back, and when
-- the call ends `refill` (24_enqueue.lua) hands free places to the held; so a lease that is given back, or was its dead
-- worker's, gets its own place again.

local OPENED, CLOSED, COMPLETE = 0, 1, 2
local BATCH_STATES = {[OPENED] = 'open', [CLOSED] = 'closed', [COMPLETE] = 'complete'}
local BATCH_KEEP_MS = 86400000  -- how long complete batches are remembered
local LEVEL_SPAN = 2 ^ 42       -- in the score of a held task, of one level

local function unpack_batch(packed)
  local cap, sequence, total, admitted, running, done, dead, cancelled, created_at, completed_at, state, events, tenant,
    on_complete, on_success, on_death = struct.unpack(BATCH_FORMAT, packed)
  return {
    cap = cap, sequence = sequence, total = total, admitted = admitted, running = running, done = done, dead = dead,
    cancelled = cancelled, created_at = created_at, completed_at = completed_at, state = state, events = events,
    tenant = tenant, on_complete = on_complete, on_success = on_success, on_death = on_death,
  }
end

local function pack_batch(b)
  return struct.pack(BATCH_FORMAT, b.cap, b.sequence, b.total, b.admitted, b.running, b.done, b.dead, b.cancelled,
    b.created_at, b.completed_at, b.state, b.events, #b.tenant, b.tenant, #b.on_complete, b.on_complete, #b.on_success,
    b.on_success, #b.on_death, b.on_death)
end

-- A batch, to be changed: `finish_batches` writes it back. nil where there is none.
local function batch(call, id)
  if call.batches[id] == nil then
    local packed = redis.call('HGET', key(call, 'batches'), id)
    call.batches[id] = packed and unpack_batch(packed)
  end
  return call.batches[id] or nil
end

-- The batch that a task belongs to, if any, and if it is not complete.
local function batch_of(call, id)
  if call.queue.special == 0 then return nil end
  local extras = extras_of(call, id)
  local b = extras.batch ~= '' and batch(call, extras.batch)
  if not b or b.state == COMPLETE then return nil end
  return b.created_at == extras.opened_at and b or nil  -- else it is a later one of that name
end

local function members_key(call, id)
  return key(call, 'members:' .. extras_of(call, id).batch)
end

local function held_key(call, id)
  return key(call, 'held:' .. extras_of(call, id).batch)
end

local function count_held(call, t, count)
  t.held, call.queue.held = t.held + count, call.queue.held + count
end

-- Of ids that are to become ready, those that have a place; the others are held.
local function find_places(call, t, ids)
  local placed = {}
  for _, id in ipairs(ids) do
    local b = batch_of(call, id)
    if b and b.cap > 0 and b.admitted >= b.cap then
      b.sequence = b.sequence + 1
      redis.call('ZADD', held_key(call, id), extras_of(call, id).priority * LEVEL_SPAN + b.sequence, id)
      count_held(call, t, 1)
    else
      if b then b.admitted = b.admitted + 1 end
      placed[#placed + 1] = id
    end
  end
  return placed
end

local function give_place_back(call, id)
  local b = batch_of(call, id)
  if b then b.admitted = b.admitted - 1 end
end

local function take_out_held(call, t, id)
  if not batch_of(call, id) or redis.call('ZREM', held_key(call, id), id) == 0 then return false end
  count_held(call, t, -1)
  return true
end

-- Notes the end of a task, `how` being done, dead or cancelled: for its batch, and for who waits for its result.
local function note_end(call, id, how)
  if extras_of(call, id).result_ttl > 0 then announce(call, 'end ' .. id) end
  local b = batch_of(call, id)
  if not b then return end
  b[how] = b[how] + 1
  redis.call('ZREM', members_key(call, id), id)
end

local function count_running(call, id, count)
  local b = batch_of(call, id)
  if b then b.running = b.running + count end
end

-- Notes a member of a batch; those that have ended are members no longer.
local function add_member(call, b, id)
  b.sequence = b.sequence + 1
  redis.call('ZADD', members_key(call, id), b.sequence, id)
end

-- A dead letter of an unfinished batch is to run once more.
local function count_revived(call, id)
  local b = batch_of(call, id)
  if not b then return end
  b.dead = b.dead - 1
  add_member(call, b, id)
end
