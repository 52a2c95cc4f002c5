-- needs: accounts, batches, errors, feeds, group_order, limits, priorities, records, remembered, task_options
--
-- The places that tasks wait in: ready tasks, delayed tasks, dead letters.
--
-- A task is in exactly one of: ready (a sorted set per tenant: tasks/priorities.lua; or its group:
-- tasks/group_order.lua), delayed (a sorted set per tenant, score start_at_ms), pending (tasks/batches.lua), leased
-- (tasks/leases.lua), dead (`dead`).

local STEP = 2 ^ -10  -- between the scores of tasks due in one ms; doubles hold it exactly until 2248
local SPREAD_MS = 16  -- that tasks with one start may spread over: 16,384 of them stay in order

places.NO_RUN = {attempt = 0, lease = 0, lost_leases = 0, error = ''}  -- of a task that was never leased

-- The score of a task of that start: behind those that came before it.
local function next_score(waiting, start_at)
  local score = start_at
  for ms = start_at, start_at + SPREAD_MS - 1 do
    local last = redis.call('ZRANGE', waiting, '(' .. text(ms + 1), text(ms), 'BYSCORE', 'REV', 'LIMIT', 0, 1,
      'WITHSCORES')[2]
    score = last and tonumber(last) + STEP or ms
    if score < ms + 1 then break end
  end
  return score
end

-- Turns starts, each followed by an id, into scores: the start in ms, and a fraction that orders tasks with the same
-- start. (A sorted set would order members with the same score by their ids.)
local function line_up(waiting, starts)
  local scores = {}
  for i = 1, #starts, 2 do
    local start_at = math.floor(starts[i])
    local score = scores[start_at] or next_score(waiting, start_at)
    starts[i], scores[start_at] = score, score + STEP
  end
end

-- Puts tasks where they wait for their start. `starts`: start and id of each, alternately. The sorted set `due`
-- holds each tenant's earliest start, so that the ticker visits tenants, not tasks. `set`: in place of `delayed:`; then
-- `starts` has scores already.
function places.put_delayed(call, account, starts, set)
  if not set then line_up(call.prefix .. 'delayed:' .. account.name, starts) end
  local first = starts[1]
  for i = 3, #starts, 2 do first = math.min(first, starts[i]) end
  write('ZADD', call.prefix .. (set or 'delayed:') .. account.name, starts)
  redis.call('ZADD', call.prefix .. 'due', 'LT', math.floor(first), account.name)
  accounts.count(call, account, 'delayed', #starts / 2)
end

local function count_ready(call, account, count)
  account.ready, call.queue.ready = account.ready + count, call.queue.ready + count
  if count > 0 and not call.readied then
    local details = accounts.odd_details(call, account)
    call.readied = not details or details.blocked == 0
  end
end

-- Puts ids behind those that are ready, or at the head; those without a batch slot become pending.
function places.put_ready(call, account, ids, is_at_head)
  if call.queue.tasks_with_options > 0 then
    task_options.read(call, ids)
    ids = batches.take_slots(call, account, ids)
  end
  count_ready(call, account, #ids)
  places.put_in_order(call, account, ids, is_at_head)
end

-- Puts a task where it waits for a start, which may be over.
function places.put(call, account, id, start_at)
  if start_at > call.now then
    places.put_delayed(call, account, {start_at, id})
  else
    places.put_ready(call, account, {id})
  end
end

-- Puts tasks that are counted as ready into their order, or their groups.
function places.put_in_order(call, account, ids, is_at_head)
  local queue, entries, groups, asked, n = call.queue, {}, nil, PLAIN, 0
  for i = 1, #ids do
    local id, order = ids[i], queue.sequence + 1
    if queue.tasks_with_options > 0 then asked = task_options.of(call, id) end
    queue.sequence = order
    if is_at_head then order = -order end
    if asked == PLAIN or group_order.group_of(asked) == '' then
      entries[n + 1], entries[n + 2], n = priorities.score(asked.priority, order), id, n + 2
    else
      groups = groups or {}
      group_order.note(groups, asked, id, order)
    end
  end
  if n > 0 then redis.call('ZADD', priorities.ready_key(call, account.name), unpack(entries)) end
  if not groups then return end
  for priority, some in pairs(groups) do group_order.put(call, account, priority, some) end
end

-- Takes a dead letter out of its places; its tenant is in its packed death. Its task stays.
function places.take_out_dead(call, id, death)
  local unpacked = DEATH.unpack(death)
  local name = unpacked.tenant
  local account = accounts.touch_named(call, name)
  accounts.add_bytes(call, account, -unpacked.counted)
  redis.call('HDEL', call.prefix .. 'dead', id)
  redis.call('ZREM', call.prefix .. 'deaths', id)
  redis.call('ZREM', call.prefix .. 'deaths:' .. name, id)
  local left = accounts.count(call, account, 'dead', -1)
  if left > 0 then
    redis.call('ZADD', call.prefix .. 'dead_counts', left, name)
  else
    redis.call('ZREM', call.prefix .. 'dead_counts', name)
  end
  return account
end

-- The lease that its owner ended, which made the task a dead letter; 0 if the task died otherwise.
function places.owner_of(death)
  return (death.reason == EXHAUSTED or death.reason == REJECTED) and death.lease or 0
end

-- Deletes a dead letter; its task's id is remembered.
function places.drop_letter(call, id, death)
  local account, record = places.take_out_dead(call, id, death), redis.call('HGET', call.prefix .. 'tasks', id)
  if records.is_task(record) then
    local header, bytes = records.read(record, id)
    accounts.add_bytes(call, account, -bytes)
    remembered.note(call, account, id)
    records.mark(call, id, 'dead', places.owner_of(DEATH.unpack(death)), header.features)
  end
  task_options.drop(call, account, id, false)
end

-- Deletes the oldest dead letters of a tenant that has more than its limit, two at most.
local function make_room_for_dead(call, account)
  local details = accounts.details_of(call, account)
  if details.limited == 0 and call.queue.limited == 0 then return end
  local limit = limits.of(call, account).dead
  if limit == 0 or details.dead <= limit then return end
  local last = math.min(2, details.dead - limit) - 1
  for _, id in ipairs(redis.call('ZRANGE', call.prefix .. 'deaths:' .. account.name, 0, last)) do
    places.drop_letter(call, id, redis.call('HGET', call.prefix .. 'dead', id))
  end
end

-- Lists a dead letter of a tenant.
function places.list_dead(call, name, id, died_at)
  redis.call('ZADD', call.prefix .. 'deaths', text(died_at), id)
  redis.call('ZADD', call.prefix .. 'deaths:' .. name, text(died_at), id)
end

-- Lists a dead letter, and counts it.
function places.count_dead(call, account, id, died_at)
  places.list_dead(call, account.name, id, died_at)
  redis.call('ZADD', call.prefix .. 'dead_counts', accounts.count(call, account, 'dead', 1), account.name)
end

-- Makes a task a dead letter, with the error in its run (or NO_RUN) and the traceback, if there is one.
function places.put_dead(call, account, id, reason, run, traceback)
  local queue, kept = call.queue, errors.fit_traceback(call, account, traceback or '', run.error)
  local more = errors.bytes_of(kept)
  redis.call('HSET', call.prefix .. 'dead', id, DEATH.pack({reason = reason, attempts = run.attempt, lease = run.lease,
    died_at = call.now, tenant = account.name, error = run.error, lost_leases = run.lost_leases, traceback = kept,
    counted = errors.bytes_of(run.error) + more}))
  places.count_dead(call, account, id, call.now)
  accounts.add_bytes(call, account, more)
  queue.buried = queue.buried + 1
  if reason == EXPIRED then queue.expired = queue.expired + 1 end
  task_options.free_key(call, account, id, true)
  batches.note_end(call, id, reason == EXPIRED and 'expired' or 'dead')
  feeds.tell_of(call, account, id, reason == EXPIRED and 'expired' or 'dead', run.attempt, REASONS[reason])
  make_room_for_dead(call, account)
end

local function take_out_ready(call, account, id)
  local asked = task_options.of(call, id)
  local group = group_order.group_of(asked)
  if group == '' then
    redis.call('ZREM', priorities.ready_key(call, account.name), id)
  else
    group_order.take_out(call, account, asked.priority, group, id)
  end
  count_ready(call, account, -1)
end

-- Takes a waiting task out of the place where it waits.
function places.take_out(call, account, id)
  local is_delayed = accounts.details_of(call, account).delayed > 0
  if is_delayed and redis.call('ZREM', call.prefix .. 'delayed:' .. account.name, id) == 1 then
    accounts.count(call, account, 'delayed', -1)
  elseif not batches.take_out_pending(call, account, id) then
    take_out_ready(call, account, id)
    batches.give_slot_back(call, id)
  end
end
