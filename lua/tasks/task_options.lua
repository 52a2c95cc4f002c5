-- needs: accounts, limits
--
-- The rarely used options of a task: a priority other than the default, a dedupe key, a batch, a group, keeping the
-- result, events, its own waits before retries.
--
-- They are stored in the hash `task_options`, for tasks that have any. `features` of a record or run says so, and
-- `queue.tasks_with_options` counts these tasks. Tasks without options cost no extra read or write.
--
-- Dedupe. `unique:<tenant>:<key>` says which task holds a key, and until when: 0, until the task is done, dead or
-- cancelled; or, where the caller gave a period, for that long after it was enqueued (its TTL only cleans up), even if
-- it is done, or dead and may be replayed. Cancelling the task or deleting its dead letter frees the key.

-- The rarely used ones of these OPTIONS; PLAIN if all are defaults (fairq/store/library.py generates it from NewTask).
function task_options.asked_by(options)
  local asked, is_plain = {}, true
  for name, default in pairs(PLAIN) do
    asked[name] = options[name] or default
    is_plain = is_plain and asked[name] == default
  end
  return is_plain and PLAIN or asked
end

-- Reads the options of these tasks, in one command.
function task_options.read(call, ids)
  if call.queue.tasks_with_options == 0 then return end
  local known, missing = table_in(call, 'task_options'), {}
  for _, id in ipairs(ids) do
    if not known[id] then
      known[id] = PLAIN
      missing[#missing + 1] = id
    end
  end
  if #missing == 0 then return end
  for i, packed in ipairs(redis.call('HMGET', call.prefix .. 'task_options', unpack(missing))) do
    if packed then known[missing[i]] = with_defaults(cmsgpack.unpack(packed), PLAIN) end
  end
end

-- Reads the options of those tasks that have any by their features.
function task_options.read_of(call, ids, features)
  if call.queue.tasks_with_options == 0 then return end
  local known, missing = table_in(call, 'task_options'), {}
  for i = 1, #ids do
    local id = ids[i]
    if not has_options(features[i]) then known[id] = PLAIN elseif not known[id] then missing[#missing + 1] = id end
  end
  if #missing > 0 then task_options.read(call, missing) end
end

function task_options.of(call, id)
  if call.queue.tasks_with_options == 0 then return PLAIN end
  local known = table_in(call, 'task_options')
  if not known[id] then task_options.read(call, {id}) end
  return known[id]
end

-- Stores the options of new tasks: {id, options, period of the dedupe key} each; the period is not used here.
function task_options.add(call, tasks)
  local known, fields = table_in(call, 'task_options'), {}
  for _, task in ipairs(tasks) do
    known[task[1]] = task[2]
    fields[#fields + 1], fields[#fields + 2] = task[1], cmsgpack.pack(without_defaults(task[2], PLAIN))
  end
  write('HSET', call.prefix .. 'task_options', fields)
  call.queue.tasks_with_options = call.queue.tasks_with_options + #tasks
end

-- Records that these tasks, which waited for batch slots, are ready from now on.
function task_options.note_ready(call, ids)
  local fields = {}
  task_options.read(call, ids)
  for _, id in ipairs(ids) do
    local asked = task_options.of(call, id)
    if asked ~= PLAIN then  -- else an earlier call failed between its writes
      asked = with_defaults({ready_at = call.now}, asked)
      call.task_options[id] = asked
      fields[#fields + 1], fields[#fields + 2] = id, cmsgpack.pack(without_defaults(asked, PLAIN))
    end
  end
  write('HSET', call.prefix .. 'task_options', fields)
end

function task_options.unique_key(call, name, dedupe_key)
  return call.prefix .. 'unique:' .. name .. ':' .. dedupe_key
end

-- The task that holds a dedupe key, or nil. One that this call acknowledges gives it back.
function task_options.holder_of(call, name, dedupe_key)
  local holder = redis.call('GET', task_options.unique_key(call, name, dedupe_key))
  if not holder then return nil end
  local until_ms, id = holder:match('^(%d+) (.*)$')
  return (until_ms == '0' and id ~= call.ending or tonumber(until_ms) > call.now) and id or nil
end

-- The entry in `ends` of a result (r) or a dedupe key (k) of a tenant, and what it counts.
local function entry_of(account, kind, name, size)
  local bytes = accounts.bytes_of(name, size)
  return kind .. account.tag .. struct.pack('<I', bytes) .. name, bytes
end

-- Records that a tenant keeps a result or dedupe key for a time. Its bytes count until then (see `trim_ends`), and the
-- deletion of the queue looks for it until then.
local function note_kept(call, account, kind, name, size, ms)
  local member, bytes = entry_of(account, kind, name, size)
  local is_new = redis.call('ZADD', call.prefix .. 'ends', call.now + ms, member) == 1
  if is_new then accounts.add_bytes(call, account, bytes) end
  call.queue.kept_until = math.max(call.queue.kept_until, call.now + ms + KEY_GRACE_MS)
end

-- The TTL of a key with an entry that is kept for a time.
local function ttl_for(ms)
  return string.format('%.0f', ms + KEY_GRACE_MS)
end

function task_options.hold_key(call, account, id, dedupe_key, period_ms)
  local at = task_options.unique_key(call, account.name, dedupe_key)
  local until_ms = period_ms > 0 and call.now + period_ms or 0
  local holder = string.format('%.0f %s', until_ms, id)
  if period_ms == 0 then
    redis.call('SET', at, holder)
    return
  end
  redis.call('SET', at, holder, 'PX', ttl_for(period_ms))
  note_kept(call, account, 'k', dedupe_key, #id, period_ms)
end

-- Frees a task's dedupe key if the task still holds it. `is_kept`: a key that is held for a period is not freed.
function task_options.free_key(call, account, id, is_kept)
  local dedupe_key = task_options.of(call, id).dedupe_key
  if dedupe_key == '' then return end
  local at = task_options.unique_key(call, account.name, dedupe_key)
  local until_ms, holder = (redis.call('GET', at) or ''):match('^(%d+) (.*)$')
  if holder ~= id or until_ms ~= '0' and is_kept then return end
  redis.call('DEL', at)
  local member, bytes = entry_of(account, 'k', dedupe_key, #id)
  if until_ms ~= '0' and redis.call('ZREM', call.prefix .. 'ends', member) == 1 then
    accounts.add_bytes(call, accounts.touch(call, account), -bytes)
  end
end

-- Removes entries of `ends` that are over, and their bytes from their tenants: up to `limit`.
function task_options.trim_ends(call, limit)
  local members = redis.call('ZRANGE', call.prefix .. 'ends', '-inf', call.sure, 'BYSCORE', 'LIMIT', 0, limit)
  for _, member in ipairs(members) do
    local account = accounts.touch(call, accounts.at(call, member:sub(2, 5)))
    accounts.add_bytes(call, account, -struct.unpack('<I', member, 6))
  end
  redis.call('ZREM', call.prefix .. 'ends', unpack(members))
end

-- Deletes the options of a task that is forgotten. `is_kept`: as in `free_key`.
function task_options.drop(call, account, id, is_kept)
  if task_options.of(call, id) == PLAIN then return end
  task_options.free_key(call, account, id, is_kept)
  redis.call('HDEL', call.prefix .. 'task_options', id)
  call.task_options[id], call.queue.tasks_with_options = PLAIN, call.queue.tasks_with_options - 1
end

-- Drops results that earlier tasks left under the ids of new ones; also those that are over, since the clock may go
-- back. Their bytes count until the time of their entry.
function task_options.drop_results(call, new_records)
  if call.queue.kept_until == 0 then return end
  local results = {}
  for i = 1, #new_records, 2 do results[#results + 1] = call.prefix .. 'result:' .. new_records[i] end
  write('UNLINK', results[1], results)  -- the first stands twice: `write` takes a key before its values
end

-- The kept result of a task and until when it is kept. The result is empty if the tenant's limit had no room for it,
-- false if none is kept.
function task_options.result_of(call, id)
  local stored = redis.call('GET', call.prefix .. 'result:' .. id)
  local until_ms, result = (stored or ''):match('^(%d+) ?(.*)$')
  until_ms = tonumber(until_ms)
  if not until_ms or until_ms <= call.now then return false end
  return result, until_ms
end

-- What a task that ends will count at least, for its result: the task has counted more.
function task_options.least_of_result(call, id)
  return task_options.of(call, id).result_ttl > 0 and accounts.bytes_of(id, 0) or 0
end

-- Keeps the result (empty: null) of a task that is no longer counted, if it asked for that. If the tenant's limit has
-- no room for it, only its time is kept, which says that there was one.
function task_options.keep_result(call, account, id, result)
  local result_ttl = task_options.of(call, id).result_ttl
  if result_ttl == 0 then return end
  if result == '' then result = 'null' end
  local value, size = string.format('%.0f', call.now + result_ttl), 0
  if accounts.bytes_of(id, #result) <= limits.room(call, account) then
    value, size = value .. ' ' .. result, #result
  end
  redis.call('SET', call.prefix .. 'result:' .. id, value, 'PX', ttl_for(result_ttl))
  note_kept(call, account, 'r', id, size, result_ttl)
end
