-- The beginning and the end of a queue.
--
-- A queue's stage is in its record: UNMADE (nothing was ever put in; workers may have looked), MADE, or DELETING.
-- `make_queue` comes after the registry has the queue (63_registry.lua), and before anything is put in: a server that
-- does not know that a queue was deleted is told so by the refusal `unmade`, and makes it anew.
--
-- To delete a queue: `block_queue`, from then on every other verb is refused with `deleting`; `empty_queue` until it
-- says "done", each call a slice; `remove_queue` from the registry; `drop_queue`. All of them may be called again at
-- any time, by any server: what is left says how far it is. A key of any size is one UNLINK, so slices count keys.
--
-- Keys are found by what names them, which is deleted after them. Kept results and dedupe keys that are held for a
-- period may outlive all that names them; the record says until when there are any, and only then the store's keys are
-- looked through. A new kind of key goes into one of the lists here: a test makes one of each and looks for the rest.

local deletion = {}  -- what other sections call
do

local KEYS_PER_SLICE = 150
local FIELDS_PER_READ, READS_PER_SLICE = 100, 20
local MARKED_MINUTES = 5000  -- before now, in which there may be marks
local OF_TENANT = {
  'ready:', 'priorities:', 'tombstone:', 'delayed:', 'events:', 'deaths:', 'schedules:', 'repair:tasks:',
  'repair:delayed:',
}
local OF_BATCH = {'members:', 'pending:'}
local OF_RUN = {'progress:'}
local FIXED = {
  'tenants', 'accounts', 'limits', 'parked', 'sweep', 'opening_hours', 'opening_changes', 'webhooks', 'wake',
  'tasks', 'payloads', 'task_options',
  'batches', 'cancelling', 'completed', 'due', 'expiring', 'runs', 'bundles', 'claims', 'leases', 'extended', 'dead',
  'deaths', 'dead_counts', 'templates', 'fires', 'ends', 'idle', 'quiet',
  'repair', 'repair:tenants',
}
local PASSING = {  -- what goes by itself, and is no reason to keep a queue
  'history:10', 'history:60', 'history:900', 'history_last',
}
local LAST = {'queue', 'deleting', 'test'}  -- what stays until all else has gone

-- Appends the keys with these beginnings and one ending.
local function append(call, doomed, heads, ending)
  for _, head in ipairs(heads) do doomed[#doomed + 1] = key(call, head .. ending) end
end

local function doom_tenant(call, doomed, name)
  append(call, doomed, OF_TENANT, name)
  doomed[#doomed + 1] = priorities.turns(call, {name = name}, DEFAULT_PRIORITY)
  for _, priority in ipairs(redis.call('ZRANGE', key(call, 'priorities:' .. name), 0, -1)) do
    doomed[#doomed + 1] = key(call, 'ready:' .. name .. ':' .. priority)
    doomed[#doomed + 1] = priorities.turns(call, {name = name}, priority)
  end
end

local function doom_batch(call, doomed, id)
  append(call, doomed, OF_BATCH, id)
end

local function doom_run(call, doomed, id)
  append(call, doomed, OF_RUN, id)
end

-- The dedupe key that a task holds, and its group. Whose they are stands in the task's record.
local function doom_named(call, doomed, id, packed)
  local asked = TASK_OPTIONS.unpack(packed)
  local group = turns.group_of(asked)
  local record = (asked.key ~= '' or group ~= '') and redis.call('HGET', key(call, 'tasks'), id)
  if not records.is_task(record) then return end
  local name = records.read(record).tenant
  if asked.key ~= '' then doomed[#doomed + 1] = task_options.unique_key(call, name, asked.key) end
  if group ~= '' then doomed[#doomed + 1] = turns.group_key(call, {name = name}, asked.priority, group) end
end

-- Hashes whose fields name keys, and how; in the order in which they are emptied.
local NAMING = {
  {hash = 'task_options', doom = doom_named},
  {hash = 'runs', doom = doom_run},
  {hash = 'batches', doom = doom_batch},
  {hash = 'tenants', doom = doom_tenant},
}

-- How far the search of one place is: a cursor, kept from call to call. A place is a hash, or (empty) all keys.
local function read_cursor(call, place)
  local kept = redis.call('GET', key(call, 'deleting')) or ''
  return kept:match('^' .. place .. ' (%d+)$') or '0'
end

local function keep_cursor(call, place, cursor)
  redis.call('SET', key(call, 'deleting'), place .. ' ' .. cursor)
end

-- Some fields of a hash with their values, the cursor where they were found, and the next one. Entries deleted before
-- leaves empty places behind, so it may take several reads, and there may be none.
local function read_some(at, cursor)
  local found, next_cursor
  for _ = 1, READS_PER_SLICE do
    next_cursor, found = unpack(redis.call('HSCAN', at, cursor, 'COUNT', FIELDS_PER_READ))
    if #found > 0 or next_cursor == '0' then break end
    cursor = next_cursor
  end
  return found, cursor, next_cursor
end

-- Deletes the keys that some fields of a hash name, and those fields; returns whether there may be more.
local function empty_some(call, naming)
  local at, doomed, fields = key(call, naming.hash), {}, {}
  if redis.call('EXISTS', at) == 0 then return false end
  local found, cursor, next_cursor = read_some(at, read_cursor(call, naming.hash))
  for i = 1, #found, 2 do
    naming.doom(call, doomed, found[i], found[i + 1])
    fields[#fields + 1] = found[i]
    if #doomed >= KEYS_PER_SLICE then break end
  end
  if #doomed > 0 then redis.call('UNLINK', unpack(doomed)) end
  if #fields > 0 then redis.call('HDEL', at, unpack(fields)) end
  keep_cursor(call, naming.hash, 2 * #fields < #found and cursor or next_cursor)
  return true
end

local function empty_next(call)
  for _, naming in ipairs(NAMING) do
    if empty_some(call, naming) then return true end
  end
  return false
end

-- Deletes some of the lists of marks, one per minute; returns whether there may be more. The last may lie ahead of now,
-- if the clock went back: the count of marks says how far to go.
local function forget_minutes(call)
  local q, now, doomed = call.queue, records.minute(call), {}
  if q.remembered <= 0 then return false end
  local minute, last = math.max(q.minute, now - MARKED_MINUTES), math.max(q.minute, now + MARKED_MINUTES)
  while #doomed < KEYS_PER_SLICE and q.remembered > 0 and minute <= last do
    doomed[#doomed + 1] = key(call, 'done:' .. minute)
    q.remembered, minute = q.remembered - redis.call('LLEN', doomed[#doomed]), minute + 1
  end
  redis.call('UNLINK', unpack(doomed))
  if #doomed < KEYS_PER_SLICE then q.remembered = 0 end
  q.minute = minute
  calls.close(call)
  return q.remembered > 0
end

local function fixed_keys(call)
  local doomed = {}
  for i, name in ipairs(FIXED) do doomed[i] = key(call, name) end
  return doomed
end

-- Deletes the queue's history.
function deletion.forget_history(call)
  local doomed = {}
  append(call, doomed, PASSING, '')
  redis.call('UNLINK', unpack(doomed))
end

-- Whether the queue has any of these keys, so anything but its record, and what that counts.
function deletion.has_keys(call)
  return redis.call('EXISTS', unpack(fixed_keys(call))) > 0
end

-- Looks through some of the store's keys for those that nothing names; returns whether there are more to look at.
local function sweep_some(call)
  local last, doomed = {}, {}
  for _, name in ipairs(LAST) do last[key(call, name)] = true end
  local page = redis.call('SCAN', read_cursor(call, ''), 'MATCH', key(call, '*'), 'COUNT', 2 * KEYS_PER_SLICE)
  for _, found in ipairs(page[2]) do
    if not last[found] then doomed[#doomed + 1] = found end
  end
  if #doomed > 0 then redis.call('UNLINK', unpack(doomed)) end
  keep_cursor(call, '', page[1])
  return page[1] ~= '0'
end

-- make_queue(keys, argv): let things be put into a queue that the registry has.
--   keys  1 prefix
--   argv  1 now  2 random_values
--   out   "ok", also if it was made before
--   flags none: refused when the store is full
function verbs.make_queue(keys, args)
  local call = calls.open(keys, args)
  if call.queue.stage == UNMADE then
    call.queue.stage = MADE
    calls.close(call)
  end
  return 'ok'
end

-- What a queue holds: {name, how many, ...}.
local function contents(call)
  local q, out = call.queue, {}
  for _, name in ipairs({'ready', 'pending', 'delayed', 'leased', 'dead'}) do
    out[#out + 1], out[#out + 2] = name, q[name]
  end
  out[#out + 1], out[#out + 2] = 'schedules', redis.call('ZCARD', key(call, 'fires'))
  local batches = redis.call('HLEN', key(call, 'batches')) - redis.call('ZCARD', key(call, 'completed'))
  out[#out + 1], out[#out + 2] = 'open_batches', batches
  return out
end

-- block_queue(keys, argv): begin to delete a queue: no other verb is carried out on it any more.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 whether it may hold something (0, 1)  4 whether the registry has it (0, 1)
--   out   "ok" (also if it was begun before, whatever it holds) | "not_empty" (nothing was changed) | "gone" (there is
--         no such queue); then what it holds: name, how many, ...
--   flags allow-oom
function verbs.block_queue(keys, args)
  local call = calls.open_any(keys, args)
  local q, counts = call.queue, contents(call)
  local may_purge, is_known = check_whole(args[3], 'purge', 0, 1), check_whole(args[4], 'known', 0, 1)
  if q.stage == DELETING then return {'ok', unpack(counts)} end
  if q.stage == UNMADE and is_known == 0 then return {'gone'} end
  for i = 2, #counts, 2 do
    if counts[i] > 0 and may_purge == 0 then return {'not_empty', unpack(counts)} end
  end
  q.stage = DELETING
  calls.close(call)
  return {'ok', unpack(counts)}
end

-- empty_queue(keys, argv): delete some of what a blocked queue holds.
--   keys  1 prefix
--   argv  1 now  2 random_values
--   out   "more" | "done" (only its record is left) | "gone" (it is not blocked)
--   flags allow-oom
function verbs.empty_queue(keys, args)
  local call = calls.open_any(keys, args)
  if call.queue.stage ~= DELETING then return 'gone' end
  if empty_next(call) then return 'more' end
  if forget_minutes(call) then return 'more' end
  local doomed = fixed_keys(call)
  for class in pairs(call.queue.classes) do doomed[#doomed + 1] = key(call, 'class:' .. class) end
  redis.call('UNLINK', unpack(doomed))
  deletion.forget_history(call)
  if call.queue.kept_until > call.now and sweep_some(call) then return 'more' end
  return 'done'
end

-- drop_queue(keys, argv): delete the record of a blocked queue that is empty.
--   keys  1 prefix
--   argv  1 now  2 random_values
--   out   "ok" | "more" (it is not empty) | "gone" (it is not blocked)
--   flags allow-oom
function verbs.drop_queue(keys, args)
  local call = calls.open_any(keys, args)
  if call.queue.stage ~= DELETING then return 'gone' end
  if deletion.has_keys(call) then return 'more' end
  local doomed = {}
  append(call, doomed, LAST, '')
  redis.call('UNLINK', unpack(doomed))
  return 'ok'
end

end
