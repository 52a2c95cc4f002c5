-- needs: accounts, remembered
--
-- Records: the entry of a task under its id in `tasks`.
--
-- The record never changes while the task lives, but for its window; a payload of more than LARGE_BYTES stands in
-- `payloads`, so that a call that reads many records reads few bytes. When the task is done or cancelled, or its dead
-- letter goes, a *mark* takes the record's place, so that a repeated enqueue or settlement can be answered. It counts
-- among its tenant's bytes: the function that marks a task counts it (pick/remembered.lua). Each minute has a list of
-- its marks, which are deleted at least a minute after its end. Ids that begin with `from-` are kept an hour longer:
-- SDKs give them to tasks that a handler enqueues, each attempt makes them anew, and some come late. The id of a copy,
-- `<id>+<webhook>-<when its task was enqueued>`, is remembered while its task is stored: each attempt of it, and each
-- of a replayed dead letter, makes its copies for webhooks with fan-out anew (fairq/webhook).

local TASK = 1  -- the first byte of a task's record; of a mark, how the task ended:
local HOW = {done = 0, dead = 2, cancelled = 255}
local ENDS = {[HOW.done] = 'done', [HOW.dead] = 'dead', [HOW.cancelled] = 'cancelled'}
local FIXED = HEADER.format:match('^<.......')  -- up to expires_at
local LARGE_BYTES = 4096
local GROUP_BYTES = 600  -- at most, of the sorted set of a group, not counting ids
local MINUTE_MS, DERIVED_MINUTES = 60000, 60

function records.is_task(record)
  return record and record:byte(1) == TASK
end

-- True if this is a record of a task with its payload in `payloads`.
function records.is_large(record)
  return records.is_task(record) and record:byte(2) >= IS_LARGE
end

-- How the task of a mark ended, 'done', 'dead' or 'cancelled', and with which lease; nil if the record is not a mark.
function records.read_mark(record)
  if not record or record:byte(1) == TASK then return nil end
  local mark = MARK.unpack(record)
  return ENDS[mark.how], mark.lease
end

-- The header of a tenant's new tasks on these terms.
local function header_of(call, tenant, terms, is_large)
  local asked = terms.asked
  terms.extra = asked == PLAIN and 0 or accounts.bytes_of(asked.dedupe_key .. asked.group, 0)
  if asked.group ~= '' then terms.extra = terms.extra + GROUP_BYTES end
  terms.type, terms.enqueued_at, terms.tenant, terms.more = TASK, call.now, tenant, ''
  if not is_large then return HEADER.pack(terms) end
  terms.features = terms.features + IS_LARGE
  local header = HEADER.pack(terms)
  terms.features = terms.features - IS_LARGE
  return header
end

-- A new task's record, whether its payload is stored apart, and the bytes that it counts. The terms are those of one
-- tenant and call. terms.stored_bytes: the size of a payload that is stored already.
function records.make(call, tenant, id, payload, terms)
  local size = terms.stored_bytes or #payload
  local is_large = terms.stored_bytes or size > LARGE_BYTES
  local kind = is_large and 'large_header' or 'header'
  local header = terms[kind] or header_of(call, tenant, terms, is_large)
  terms[kind] = header  -- it is made once in a call
  return header .. (is_large and struct.pack('<I', size) or payload), is_large,
    accounts.bytes_of(id, #header + size + terms.extra)
end

-- A record's header, and (where the id is given) the bytes that the task counts.
function records.read(record, id)
  local header, position = HEADER.unpack(record)
  local length = header.features < IS_LARGE and #record or position - 1 + struct.unpack('<I', record, position)
  return header, id and accounts.bytes_of(id, length + header.extra)
end

-- What a claim needs of a record, as values: features, max_attempts, expires_at, and the bytes that the task counts;
-- nil if it is not the record of a task.
function records.read_for_claim(record, id)
  if not record or record:byte(1) ~= TASK then return nil end
  local _, features, max_attempts, extra, _, _, expires_at = struct.unpack(FIXED, record)
  if features < IS_LARGE then
    return features, max_attempts, expires_at, accounts.bytes_of(id, #record + extra)
  end
  local _, bytes = records.read(record, id)
  return features, max_attempts, expires_at, bytes
end

-- The record with its payload behind the header, however long that is.
function records.whole(call, id, record)
  local header, position = HEADER.unpack(record)
  if header.features < IS_LARGE then return record end
  return record:sub(1, position - 1) .. (redis.call('HGET', call.prefix .. 'payloads', id) or '')
end

-- The current time in seconds, as `start_from` and `end_from` keep it for a window that is relative to now.
function records.counted_from(call) return math.floor(call.now / 1000) end

-- Changes these fields of a task's window. Returns how much longer its record is.
function records.change_window(call, id, record, window)
  local header, position = HEADER.unpack(record)
  for name, value in pairs(window) do header[name] = value end
  local changed = HEADER.pack(header) .. record:sub(position)
  redis.call('HSET', call.prefix .. 'tasks', id, changed)
  return #changed - #record
end

-- A mark in place of the record and the run of a task that has ended; `lease` is 0 if its owner did not end it.
function records.mark(call, id, how, lease, features)
  local marks = call.marks
  if not marks then
    marks = {ids = {}, fields = {}, large = false, lease = false, how = false, packed = ''}
    call.marks = marks
  end
  local ids, fields = marks.ids, marks.fields
  local n = #fields
  call.runs[id] = false
  if marks.lease ~= lease or marks.how ~= how then  -- most tasks that end in one call are of one lease
    marks.lease, marks.how = lease, how
    marks.packed = struct.pack(MARK.format, HOW[how], lease)
  end
  ids[#ids + 1] = id
  fields[n + 1] = id
  fields[n + 2] = marks.packed
  if features >= IS_LARGE then table.insert(table_in(marks, 'large'), id) end
end

-- Names the marks of these ids for their end.
function records.name_marks(call, ids)
  local queue, minute, short_kept = call.queue, remembered.minute(call), ids
  if queue.remembered == 0 or minute < queue.minute then queue.minute = minute end
  queue.remembered = queue.remembered + #ids
  if table.concat(ids, '\n'):find('/from-', 1, true) then
    local long_kept = {}
    short_kept = {}
    for _, id in ipairs(ids) do table.insert(remembered.is_long(id) and long_kept or short_kept, id) end
    write('RPUSH', call.prefix .. 'done:' .. minute + DERIVED_MINUTES, long_kept)
  end
  write('RPUSH', call.prefix .. 'done:' .. minute, short_kept)
end

-- Writes the marks: of those tasks nothing else is left.
function records.write_marks(call)
  local marks = call.marks
  redis.call('HDEL', call.prefix .. 'runs', unpack(marks.ids))
  redis.call('HSET', call.prefix .. 'tasks', unpack(marks.fields))
  records.name_marks(call, marks.ids)
  if marks.large then write('HDEL', call.prefix .. 'payloads', marks.large) end
  call.marks = false
end

-- When the oldest marks may go.
function records.next_trim_at(queue)
  return (queue.minute + 2) * MINUTE_MS
end

-- The id of the task that this id is a copy of, if that task is stored.
local function owner_of_copy(call, id)
  local original, enqueued_at = id:match('^(.*)%+%x+%-(%d+)$')
  local record = original and redis.call('HGET', call.prefix .. 'tasks', original)
  local header = records.is_task(record) and HEADER.unpack(record)
  return header and header.enqueued_at == tonumber(enqueued_at) and header.tenant
end

-- Forgets these ids, except copies that may be made anew. Each has a mark and no task: an id is listed after its mark
-- is written, and nothing is stored over a mark.
local function forget_marks(call, ids)
  local again, gone = {}, {}
  for _, id in ipairs(ids) do
    local owner = owner_of_copy(call, id)
    table.insert(owner and again or gone, id)
    if owner then remembered.note(call, accounts.touch_named(call, owner), id, true) end
  end
  write('HDEL', call.prefix .. 'tasks', gone)
  write('RPUSH', call.prefix .. 'done:' .. remembered.minute(call) + DERIVED_MINUTES, again)
  call.queue.remembered = call.queue.remembered - #gone
end

-- Forgets ids that ended long enough ago, up to `limit`.
function records.trim_marks(call, limit)
  local queue = call.queue
  while limit > 0 and queue.remembered > 0 and records.next_trim_at(queue) <= call.sure do
    local ids = redis.call('LPOP', call.prefix .. 'done:' .. queue.minute, limit)
    if ids then
      forget_marks(call, ids)
      limit, call.is_changed = limit - #ids, true
    else
      queue.minute, limit, call.is_changed = queue.minute + 1, limit - 1, true
    end
  end
end

-- What the store has under these ids: their records or marks.
function records.of(call, ids)
  return redis.call('HMGET', call.prefix .. 'tasks', unpack(ids))
end
