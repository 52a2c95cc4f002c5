-- needs: batch_ends, batches, calls, close, errors, late_tasks, leases, lost_leases, picks, records, seats, takes,
-- task_options, wake_list
--
-- The verb `claim`: the fair pick (pick/README.md), and the lease that is written in the same atomic step.
--
-- A claim works in rounds: pick tenants (none leaves its seat meanwhile, so the line of seats stays true), take their
-- tasks, seat the tenants that were emptied. All of that only reads; then come all writes (`write_claim`, the close),
-- so that any error leaves the queue unchanged. A second round is needed in three cases: all tenants with seats are
-- served (those from the wake list take seats only afterwards), picks found no task, or none of the tenants that the
-- round looked at has more. (pick/README.md explains seats, their line, and the wake list.)
--
local ROUNDS = 8
local MAX_SLOTS = 1000000000
-- A run in two parts: the first is the same for all tasks of a claim with the same features.
local RUN_HEAD, RUN_REST = RUN.format:match('^<.......'), '<' .. RUN.format:match('^<.......(.*)')
-- Places in the reply of the values that are known only at the end of a claim, and how many stand before the leases.
local LEASE_AT, RESULT_IDS_AT, TICK_AT, KEPT_OUT_AT, WEIGHT_SUM_AT, ALONE_AT = 3, 4, 5, 6, 9, 10
local GUARANTEED_AT, OWED_AT, HEAD = 12, 13, 13
local LEASES_PER_CALL = 150  -- MAX_LEASES of fairq/model/tasks.py: servers ask for no more

-- True if the task of a ready entry is leased already: an earlier call failed between its writes.
local function is_left_over(call, id, run)
  return leases.is_leased(run.state) and (redis.call('HEXISTS', call.prefix .. 'bundles', leases.field(run.lease)) == 1
    or redis.call('ZSCORE', call.prefix .. 'extended', id))
end

-- Reads the options of the tasks of these records.
local function read_options(call, ids, found)
  local features = {}
  for i, record in ipairs(found) do features[i] = records.is_task(record) and record:byte(2) or 0 end
  task_options.read_of(call, ids, features)
end

-- Notes a leased task with options, and adds it to the reply's ids if its result is kept.
local function note_options(call, taking, id)
  local kept = taking.out[RESULT_IDS_AT]
  table.insert(table_in(taking, 'with_options'), id)
  if task_options.of(call, id).result_ttl > 0 then kept[#kept + 1] = id end
end

-- Adds a task to the reply's ids if it runs alone, by its last run, in an attempt that is its last one or not.
local function note_alone(call, taking, id, run, is_last)
  if lost_leases.runs_alone(call.queue, run.lost_leases, is_last) then table.insert(taking.out[ALONE_AT], id) end
end

-- Handles the options of a task with features. Returns its record as it stands in the reply.
local function note_features(call, taking, id, record, features)
  if has_options(features) then note_options(call, taking, id) end
  if features < IS_LARGE then return record end
  record = records.whole(call, id, record)
  taking.bytes = taking.bytes + #record
  return record
end

-- Leases the tasks of these ids unless they have expired. An entry without a task, or with a leased one, is dropped: an
-- earlier call failed between its writes. The picks that have no task yet stay in the round.
local function lease_round(call, round, ids, taking)
  local leased, new_runs, out, packed_head, packed_head_of = taking.ids, taking.runs, taking.out, nil, nil
  local found, runs, n = records.of(call, ids), redis.call('HMGET', call.prefix .. 'runs', unpack(ids)), #leased
  local guaranteed = round.guaranteed
  round.pending = 0
  if call.queue.tasks_with_options > 0 then read_options(call, ids, found) end
  for i = 1, round.count do
    local id, record, last_run, attempt, uncounted, message, more = ids[i], found[i], runs[i], 1, 0, '', ''
    local features, max_attempts, expires_at, bytes = records.read_for_claim(record, id)
    local last = max_attempts
    if last_run then  -- of the task's last attempt
      last_run = RUN.unpack(last_run)
      attempt, uncounted, max_attempts = last_run.attempt + 1, last_run.uncounted_attempts, last_run.max_attempts
      message, more = last_run.error, RUN.more(last_run)
      bytes = bytes and bytes + errors.bytes_of(last_run.error)
      last = leases.last_attempt(max_attempts, uncounted)
    end
    if not features or last_run and is_left_over(call, id, last_run) then
      picks.unpick(call, round, i, 0)
    elseif taking.bytes >= PAGE_BYTES or expires_at > 0 and expires_at <= call.sure then
      late_tasks.leave(call, round, i, taking, id, last_run)
    else
      if features > 0 then record = note_features(call, taking, id, record, features) end
      if more ~= '' then note_alone(call, taking, id, last_run, 0 < last and last <= attempt) end  -- has lost_leases
      if expires_at > 0 then table.insert(table_in(taking, 'expiring'), id) end
      if guaranteed and guaranteed[i] then table.insert(out[GUARANTEED_AT], id) end
      if features ~= packed_head_of then
        packed_head_of = features
        packed_head = struct.pack(RUN_HEAD, taking.lease, leases.LEASED, features, 0, 0, call.at, call.queue.lease_ms)
      end
      n = n + 1
      leased[n], new_runs[2 * n - 1] = id, id
      new_runs[2 * n] = packed_head .. struct.pack(RUN_REST, bytes, round.tenants[i], attempt, uncounted,
        max_attempts, expires_at, #more, more) .. message
      local at = HEAD + 4 * n
      out[at - 3], out[at - 2], out[at - 1], out[at] = id, attempt, last, record
    end
  end
  round.count = round.pending
end

-- The writes of a claim, but for its batches and what the close writes.
local function write_claim(call, taking)
  if #taking.ids > 0 then leases.write_new(call, taking.lease, taking.name, taking.ids, taking.runs) end
  if taking.expiring then write('ZREM', call.prefix .. 'expiring', taking.expiring) end
  takes.write(call)
  wake_list.write(call)
  if taking.returned then late_tasks.put_back(call, taking) end
  if #taking.late > 0 then late_tasks.bury(call, taking) end
  if taking.with_options then
    for _, id in ipairs(taking.with_options) do batches.count_running(call, id, 1) end
  end
end

-- Gives the leases of an earlier claim with this name again, renewed. Returns whether there are any.
local function recall(call, taking)
  local field = redis.call('HGET', call.prefix .. 'claims', taking.name)
  local bundle = field and leases.bundle(call, tonumber(field))
  if not bundle then return false end
  local ids, deadline, lease = leases.ids_of(bundle), text(call.at + call.queue.lease_ms), tonumber(field)
  leases.read_runs(call, ids)
  local found = records.of(call, ids)
  for i, id in ipairs(ids) do
    local run = leases.run_of(call, id)
    if run and leases.is_leased(run.state) and run.lease == lease and records.is_task(found[i]) then
      if has_options(run.features) then note_options(call, taking, id) end
      if run.is_extended == 1 then redis.call('ZADD', call.prefix .. 'extended', deadline, id) end
      local last = leases.last_attempt(run.max_attempts, run.uncounted_attempts)
      note_alone(call, taking, id, run, 0 < last and last <= run.attempt)
      for _, value in ipairs({id, run.attempt, last, records.whole(call, id, found[i])}) do
        taking.out[#taking.out + 1] = value
      end
    end
  end
  if #taking.out == HEAD then return false end
  taking.lease = lease
  redis.call('ZADD', call.prefix .. 'leases', 'XX', deadline, field)
  return true
end

-- The head of the reply: the facts about the queue.
local function reply_of(call, taking)
  local out, blocked = taking.out, call.queue.blocked
  if #out > HEAD then out[LEASE_AT] = taking.lease end
  out[TICK_AT], out[WEIGHT_SUM_AT] = call.unpark_at or -1, call.queue.weight_sum
  if blocked > 0 then
    out[KEPT_OUT_AT] = {'', blocked, call.now, call.now}
  elseif call.kept_out then
    out[KEPT_OUT_AT] = {unpack(call.kept_out)}
  end
  return out
end

-- Leases the tasks of a round of picks.
local function take_round(call, taking, round)
  while round.count > 0 do
    local ids = picks.take(call, round)
    if round.count > 0 then lease_round(call, round, ids, taking) end
  end
end

-- Runs rounds until the claim has as many tasks as it asks for, or there are no more: the first one serves those that
-- are owed, if it asks for them. When only tenants that were passed over are left, they are looked at again. Returns
-- how many rounds there were, and whether only kept slots are left.
local function fill(call, taking)
  local queue, rounds, only_reserve_left, round, is_empty = call.queue, 0, false, nil, nil
  call.wake, call.passed_over = {read = 0, unserved = {}, again = {}}, {}
  if taking.owed > 0 and queue.blocked == 0 then
    take_round(call, taking, picks.owed_round(call, taking.owed))
    taking.limit, rounds = taking.limit + #taking.ids, 1
  end
  while #taking.ids < taking.limit and queue.blocked == 0 and queue.servable > 0 and rounds < ROUNDS
      and #taking.late < late_tasks.PER_CALL and call.costly < COSTLY_PER_CALL and taking.bytes < PAGE_BYTES
      and not only_reserve_left do
    if rounds > 0 then seats.seat_all(call) end
    round, is_empty, only_reserve_left = picks.round(call, taking.limit - #taking.ids)
    take_round(call, taking, round)
    if is_empty and next(call.passed_over) then
      call.passed_over = {}
    else
      rounds = rounds + 1
    end
  end
  return rounds, only_reserve_left
end

-- A claim: its arguments, and its results so far.
function claim.read(call, args)
  local limit = math.min(check_whole(args[4], 'limit', 0, TASKS_PER_CALL), LEASES_PER_CALL)
  if #args[3] > ID_BYTES then refuse('bad_request', 'worker') end
  calls.confirm(call, args[6])
  local slots = (args[7] or '') ~= '' and check_whole(args[7], 'slots', 0, MAX_SLOTS) or call.queue.slots
  local queue, owed = call.queue, (args[8] or '') ~= '' and check_whole(args[8], 'owed', 0, TASKS_PER_CALL) or 0
  local out = {call.now, queue.lease_ms, 0, {}, -1, {}, queue.run_timeout_ms, queue.queue_weight, 0, {}, queue.share,
    {}, 0}
  return {name = args[3], limit = limit, owed = math.min(owed, LEASES_PER_CALL - limit), slots = slots,
    lease = leases.next_number(call), ids = {}, runs = {}, out = out, with_options = false, expiring = false, late = {},
    returned = false, bytes = 0}
end

-- Carries a claim out, and closes the call if anything has changed. Returns the reply.
function claim.carry_out(call, taking)
  local queue, has_changed = call.queue, taking.slots ~= call.queue.slots
  queue.slots, call.proven_slots = taking.slots, queue.leased + taking.limit + taking.owed
  local rounds, only_reserve_left = fill(call, taking)
  if call.wake.read > 0 then taking.out[OWED_AT] = wake_list.owed(call) end
  local is_short = #taking.ids < taking.limit
  if rounds > 0 or has_changed or is_short and queue.hungry == 0 then
    write_claim(call, taking)
    batch_ends.finish(call)
    if is_short then  -- there may be more, if a bound ended it: the server claims again
      queue.hungry, call.readied = 1, call.readied or queue.servable > 0 and not only_reserve_left
    elseif taking.owed > 0 then  -- the enqueues that left with it were announced to no server
      call.readied = call.readied or queue.servable > 0
    end
    close.call(call)
  end
  return reply_of(call, taking)
end

-- claim(keys, argv): lease up to `limit` ready tasks by the fair pick.
--   argv  3 name of the claim  4 limit (0..500; at most 150 are leased)  5 "again" if an earlier call under this name
--         may have been carried out: if any of its leases is open, these are given again and nothing new; if none is,
--         this is a new claim  6 the server's own time in ms (may be empty or left out): see calls.confirm  7 how
--         many slots are attached to the queue, over all servers, for the reserve (empty or left out: as before)
--         8 how many more leases at most, of tenants below their guarantees alone (empty or left out: 0)
--   out   now_ms, lease_ms, lease (the number that opens all these leases; 0: nothing was taken), ids of tasks with a
--         kept result, when to tick since tenants ran out of tokens (ms; -1: none did), of tenants that were kept
--         out while they had ready tasks: name, cause (as `blocked`; 8: max_running), from when, until when, and of a
--         queue that is blocked: '', blocked, now, now; how long its handlers may run (ms; 0: for ever), its weight
--         among queues (thousandths), and that of its competing tenants; ids of tasks that run alone
--         (tasks/lost_leases.lua); what is shared (0: time, 1: tasks); ids of tasks that are within their tenants'
--         guarantees, and how many more such tasks there are, of the tenants that the claim met; then per task: id,
--         attempt, the attempt after which a failure is final (of none: minus the attempts that did not count), record
--         Fewer than `limit`: the queue is marked hungry, and `ready` is published when there is work again.
--         A queue that is paused or closed gives none. A claim that serves no tenant, on a queue that is hungry already
--         and has as many slots, writes nothing.
function drains.claim(keys, args)
  local call = calls.ask(keys, args)
  local taking = claim.read(call, args)
  if args[5] == 'again' then
    calls.refuse_in_repair(call)
    if recall(call, taking) then
      close.call(call)  -- with the time from which the new deadlines count
      return reply_of(call, taking)
    end
  end
  return claim.carry_out(call, taking)
end
