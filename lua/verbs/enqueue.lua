-- needs: arrivals, calls, close, errors, leases, records, remembered, settlements, standing, task_options, waiting
--
-- The verb `enqueue`.
--
-- A task that is enqueued with `replace` takes the place of the waiting task that holds its dedupe key: that one is
-- cancelled in the same call. One that runs, has ended or is in a batch stays, and the new task is its duplicate. The
-- tasks of a call count as if each had come alone, in their order: so of several that replace, the last one stays.

-- Adds a waiting task to those that will be cancelled for new ones, which may use its room.
local function note_replaced(new, id, record, run, bytes, is_delayed)
  new.replaced[#new.replaced + 1] = {id = id, record = record, run = run}
  new.freed_bytes = new.freed_bytes + bytes - remembered.bytes_of(id)
  if is_delayed then new.freed_delayed = new.freed_delayed + 1 end
  return true
end

-- Replaces the waiting task with this id that holds the dedupe key. `own`: it came with the same call. False if there
-- is no such task: a key may be held for longer than its task exists, and the id may be that of a later task.
local function replace(call, new, id, dedupe_key, own)
  if own then
    return own.batch == '' and note_replaced(new, id, own.record, nil, own.bytes, own.is_delayed)
  end
  local record = redis.call('HGET', call.prefix .. 'tasks', id)
  if not records.is_task(record) or redis.call('HEXISTS', call.prefix .. 'dead', id) == 1 then return false end
  leases.read_runs(call, {id})
  local run, asked, header, bytes = leases.run_of(call, id), task_options.of(call, id), records.read(record, id)
  if run and leases.is_leased(run.state) or asked.dedupe_key ~= dedupe_key or asked.batch ~= '' then return false end
  local is_delayed = redis.call('ZSCORE', call.prefix .. 'delayed:' .. header.tenant, id)
  return note_replaced(new, id, record, run, bytes + (run and errors.bytes_of(run.error) or 0), is_delayed)
end

-- Checks and decides on a task; returns its outcome.
local function admit(call, new, id, payload, terms)
  local outcome, holder, own = arrivals.admit(call, new, id, payload, terms)
  if not holder or terms.replace == 0 then return outcome end
  if not replace(call, new, holder, terms.asked.dedupe_key, own) then return outcome end
  arrivals.add(call, new, id, payload, terms)
  return 'replaced'
end

-- Decides on the tasks in the arguments (id, options and payload each), before the first write. Returns their outcomes.
function enqueue.decide(call, new, args, first, last)
  local ids, seen, outcomes, read, count, options, terms = {}, {}, {}, {}, 0, nil, nil
  for i = first, last, 3 do
    count = count + 1
    ids[count] = args[i]
  end
  if count == 0 or count > TASKS_PER_CALL or (last - first) % 3 ~= 2 then refuse('bad_request', 'tasks') end
  local known = records.of(call, ids)
  for n = 1, count do
    local at, id, outcome = first + 3 * n, ids[n], 'duplicate'
    local packed = args[at - 2]
    check_id(id, ID_BYTES)
    if packed ~= options then  -- most have the same, or are of a few kinds
      options, terms = packed, read[packed] or arrivals.read_options(call, packed)
      read[packed] = terms
    end
    if known[n] or seen[id] then
      new.has_duplicates = true
    else
      outcome = admit(call, new, id, args[at - 1], terms)
      seen[id] = outcome == 'ok' or outcome == 'replaced'
    end
    outcomes[n] = outcome
  end
  if #new.records > 0 then arrivals.check_quotas(call, new) end
  return outcomes
end

-- Stores the tasks that `decide` accepted, and writes what is left of tasks that the call has ended. Replaced tasks are
-- cancelled last: they may have come with the same call.
function enqueue.store_decided(call, new)
  if #new.records > 0 then arrivals.store(call, new) end
  for _, task in ipairs(new.replaced) do waiting.cancel_one(call, task.id, task.record, task.run) end
  if call.marks or call.batches then settlements.write(call) end
end

-- Adds to the outcomes of duplicates the states of the tasks that they duplicate, when all is stored.
function enqueue.tell_states(call, args, first, outcomes)
  local ids, numbers = {}, {}
  for n, outcome in ipairs(outcomes) do
    local holder = outcome ~= 'ok' and outcome:match('^duplicate ?(.*)$')
    if holder then ids[#ids + 1], numbers[#numbers + 1] = holder ~= '' and holder or args[first + 3 * n - 3], n end
  end
  for i, known in ipairs(#ids > 0 and standing.of(call, ids) or ids) do
    outcomes[numbers[i]] = outcomes[numbers[i]] .. '\n' .. known[1]
  end
end

-- enqueue(keys, argv): store tasks of one tenant; a task with a known id is left unchanged.
--   argv  3 tenant  then per task (at most 500): id, options (packed, see OPTIONS in KEYS.md), payload; last of all the
--         servers to notify (left out: all): "covered", none, because the caller claims as many tasks right after this
--         call; or "wake <server>", that one first
--         Refused as a whole (`not_found` or `batch_closed`) where a batch is not the tenant's, or not open; and with
--         `quota_exceeded <limit> <ms until it may be tried again>` where the tenant would have too much waiting.
--   out   per task:
--         "ok" | "duplicate" (id waiting, leased or dead, or ended not long ago)
--         | "duplicate <id>" (another task holds its dedupe key: not stored); behind either a line feed and that task's
--         state, as in `tasks`
--         | "replaced" (stored, and the waiting task that held its dedupe key is cancelled)
--         | "expired" (it would expire before it could start: not stored)
--         and last, if it is a partition and the tenant begins to wait: the weight of the tenants that compete there
function writes.enqueue(keys, args)
  local call, new = calls.open_made(keys, args), arrivals.new(args[3])
  check_tenant(new.tenant)
  local outcomes = enqueue.decide(call, new, args, 4, arrivals.read_notify(call, args))
  if #new.records > 0 then
    enqueue.store_decided(call, new)
    close.call(call)
  end
  if new.has_duplicates then enqueue.tell_states(call, args, 4, outcomes) end
  if call.to_wake then outcomes[#outcomes + 1] = close.competing_weight(call) end
  return outcomes
end
