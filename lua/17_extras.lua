-- What few tasks ask for: a priority other than the usual one, a dedupe key, a place in a batch, that their result is
-- kept, that what becomes of them is told.
--
-- It stands in the hash `extras`, for those tasks only, and `queue.special` counts them: where nobody asks for
-- anything, nothing more is read or written than without all this.
--
-- Priority. A tenant's ready tasks stand in one list per level, 0 (most urgent) to 99; the usual level's list is
-- `ready:<tenant>`, the others are `ready:<tenant>:<level>` and named in the sorted set `levels:<tenant>`, where a
-- level stays until a pop finds its list empty. Levels order a tenant's own tasks; to the fair pick they are nothing.
--
-- Dedupe. `unique:<tenant>:<key>` says which task holds a key, and until when: 0, until the task is done, dead or
-- cancelled; or, where the caller gave a window, for that long after it was enqueued, whatever becomes of it (its TTL
-- only cleans up).
--
-- Events. `events:<tenant>` is the feed of what became of those tasks (and batches) that asked for it. Its ids count
-- 0-1, 0-2, ... and none is ever taken out but the oldest, so its length and its last id say what has gone.

local USUAL_PRIORITY, MAX_PRIORITY = 50, 99
local PLAIN = {priority = USUAL_PRIORITY, result_ttl = 0, opened_at = 0, events = 0, key = '', batch = ''}
local EVENT_BYTES = 256  -- of what an event says beside its kind, what is kept

local function unpack_extras(packed)
  local priority, result_ttl, opened_at, events, key, batch = struct.unpack(EXTRAS_FORMAT, packed)
  return {
    priority = priority, result_ttl = result_ttl, opened_at = opened_at, events = events, key = key, batch = batch,
  }
end

local function pack_extras(extras)
  return struct.pack(EXTRAS_FORMAT, extras.priority, extras.result_ttl, extras.opened_at, extras.events,
    #extras.key, extras.key, #extras.batch, extras.batch)
end

-- Reads what these tasks ask for, in one command.
local function read_extras(call, ids)
  if call.queue.special == 0 then return end
  local known, missing = call.extras, {}
  for _, id in ipairs(ids) do
    if not known[id] then
      known[id] = PLAIN
      missing[#missing + 1] = id
    end
  end
  if #missing == 0 then return end
  for i, packed in ipairs(redis.call('HMGET', key(call, 'extras'), unpack(missing))) do
    if packed then known[missing[i]] = unpack_extras(packed) end
  end
end

local function extras_of(call, id)
  if call.queue.special == 0 then return PLAIN end
  if not call.extras[id] then read_extras(call, {id}) end
  return call.extras[id]
end

-- Notes what a new task asks for.
local function add_extras(call, id, extras)
  redis.call('HSET', key(call, 'extras'), id, pack_extras(extras))
  call.extras[id], call.queue.special = extras, call.queue.special + 1
end

local function unique_key(call, name, dedupe_key)
  return key(call, 'unique:' .. name) .. ':' .. dedupe_key
end

-- The task that holds a dedupe key, or nil.
local function holder_of(call, name, dedupe_key)
  local held = redis.call('GET', unique_key(call, name, dedupe_key))
  if not held then return nil end
  local until_ms, id = held:match('^(%d+) (.*)$')
  return (until_ms == '0' or tonumber(until_ms) > call.now) and id or nil
end

-- Notes that a key which nothing names is kept, and for how long: it is to be looked for when the queue is deleted.
local function note_kept(call, ms)
  call.queue.kept_until = math.max(call.queue.kept_until, call.now + ms + DONE_WINDOW_MS)
end

local function hold_key(call, name, id, dedupe_key, window_ms)
  local at, until_ms = unique_key(call, name, dedupe_key), window_ms > 0 and call.now + window_ms or 0
  redis.call('SET', at, string.format('%.0f %s', until_ms, id))
  if window_ms == 0 then return end
  redis.call('PEXPIRE', at, string.format('%.0f', window_ms + DONE_WINDOW_MS))
  note_kept(call, window_ms)
end

-- Gives a task's dedupe key back, if it is the task's still and not held for a window.
local function free_key(call, name, id)
  local dedupe_key = extras_of(call, id).key
  if dedupe_key == '' then return end
  local at = unique_key(call, name, dedupe_key)
  if redis.call('GET', at) == '0 ' .. id then redis.call('DEL', at) end
end

-- For a task that is forgotten.
local function drop_extras(call, name, id)
  if extras_of(call, id) == PLAIN then return end
  free_key(call, name, id)
  redis.call('HDEL', key(call, 'extras'), id)
  call.extras[id], call.queue.special = PLAIN, call.queue.special - 1
end

local function ready_key(call, t, level)
  local usual = key(call, 'ready:' .. t.name)
  return level == USUAL_PRIORITY and usual or usual .. ':' .. level
end

-- The field of an entry in `void:<tenant>`.
local function void_field(id, level)
  return level == USUAL_PRIORITY and id or level .. ':' .. id
end

-- The levels whose lists may hold tasks of this tenant, most urgent first.
local function levels_of(call, t)
  local levels = {USUAL_PRIORITY}
  if t.levels == 0 then return levels end
  for _, level in ipairs(redis.call('ZRANGE', key(call, 'levels:' .. t.name), 0, -1)) do
    levels[#levels + 1] = tonumber(level)
  end
  table.sort(levels)
  return levels
end

local function open_level(call, t, level)
  if level == USUAL_PRIORITY then return end
  t.levels = t.levels + redis.call('ZADD', key(call, 'levels:' .. t.name), level, level)
end

local function close_level(call, t, level)
  if level == USUAL_PRIORITY then return end
  t.levels = t.levels - redis.call('ZREM', key(call, 'levels:' .. t.name), level)
end

-- Puts an event into a tenant's feed, and says once in a call that there are new ones.
local function tell(call, name, event, id, attempt, detail)
  redis.call('XADD', key(call, 'events:' .. name), 'MAXLEN', '=', call.queue.events_keep, '0-*', 'event', event,
    'id', id, 'at', text(call.now), 'attempt', attempt, 'detail', detail:sub(1, EVENT_BYTES))
  if call.told[name] then return end
  call.told[name] = true
  announce(call, 'event ' .. name)
end

-- Tells what has become of a task, if it asked for that.
local function tell_of(call, t, id, event, attempt, detail)
  if extras_of(call, id).events > 0 then tell(call, t.name, event, id, attempt, detail) end
end
