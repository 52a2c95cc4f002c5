-- needs: accounts, calls, errors, leases, limits, places, records, remembered, settlements,
-- task_options
--
-- Tasks are cancelled, or get another start.

-- Calls visit(call, id, record, run) for the tasks that are neither done nor dead. Returns its result per id, "gone"
-- for other ids.
local function visit_alive(call, ids, visit)
  local outcomes, found = {}, records.of(call, ids)
  local deaths = redis.call('HMGET', call.prefix .. 'dead', unpack(ids))
  leases.read_runs(call, ids)
  task_options.read(call, ids)
  for i, id in ipairs(ids) do
    local is_alive = records.is_task(found[i]) and not deaths[i]
    outcomes[i] = is_alive and visit(call, id, found[i], leases.run_of(call, id)) or 'gone'
  end
  return outcomes
end

function waiting.cancel_one(call, id, record, run)
  if run and leases.is_leased(run.state) then  -- the worker is notified, and keeps the lease until it settles
    run.state = leases.STOPPING
    leases.set_run(call, id, run)
    calls.announce(call, 'stop ' .. id)
    return 'running'
  end
  local header, bytes = records.read(record, id)
  local account = accounts.touch_named(call, header.tenant)
  places.take_out(call, account, id)
  if header.expires_at > 0 then redis.call('ZREM', call.prefix .. 'expiring', id) end
  local is_settled = run and run.state == leases.SETTLED
  accounts.add_bytes(call, account, -bytes - (run and errors.bytes_of(run.error) or 0))
  remembered.note(call, account, id)
  settlements.cancel(call, account, id, is_settled and run.lease or 0, is_settled and run.attempt or 0, header.features)
  return 'ok'
end

-- Goes on cancelling the tasks of batches that were cancelled as a whole.
function waiting.cancel_members(call, limit)
  local left = limit
  for _, id in ipairs(redis.call('ZRANGE', call.prefix .. 'cancelling', 0, limit - 1)) do
    local popped, ids = redis.call('ZPOPMIN', call.prefix .. 'members:' .. id, left), {}
    for i = 1, #popped, 2 do ids[#ids + 1] = popped[i] end
    if #ids < left then redis.call('ZREM', call.prefix .. 'cancelling', id) end
    if #ids > 0 then visit_alive(call, ids, waiting.cancel_one) end
    left = left - #ids
    if left == 0 then break end
  end
end

-- cancel(keys, argv): forget waiting tasks, and ask the workers of running ones to stop.
--   argv  3 "waiting" to leave running tasks alone (else empty)  ids (at most 64, each once)
--   out   per id "ok" (it will not run) | "running" (unless argv 3 is "waiting", its worker is asked to stop; if it
--         acks all the same, the task is done) | "gone" (done, dead, cancelled or unknown)
function drains.cancel(keys, args)
  local call, may_stop = calls.open(keys, args), args[3] ~= 'waiting'
  local outcomes = visit_alive(call, ids_in(args, 4, CHANGES_PER_CALL), function(_, id, record, run)
    if not may_stop and run and leases.is_leased(run.state) then return 'running' end
    return waiting.cancel_one(call, id, record, run)
  end)
  settlements.close(call)
  return outcomes
end

-- Gives a waiting task another start; its end moves too if it counts from the start.
local function move(call, id, record, run, start_at, start_from)
  local header = records.read(record)
  local account, expires_at = accounts.touch_named(call, header.tenant), header.expires_at
  local moves = expires_at > 0 and header.features % IS_LARGE >= END_MOVES  -- its end counts from its start
  local starts_at = math.max(start_at, call.now)
  if expires_at > 0 and expires_at <= (moves and call.now or starts_at) then return 'expired' end
  if not redis.call('ZSCORE', call.prefix .. 'delayed:' .. account.name, id) then
    local most, details = limits.of(call, account).delayed, accounts.details_of(call, account)
    if start_at <= call.now then return 'ok' end
    if most > 0 and details.delayed >= most then return 'quota_exceeded' end
  end
  local end_from = header.end_from
  if moves then
    expires_at = starts_at + expires_at - (header.start_at > 0 and header.start_at or header.enqueued_at)
    end_from = start_at > call.now and start_from or records.counted_from(call)
    redis.call('ZADD', call.prefix .. 'expiring', expires_at, id)
  end
  places.take_out(call, account, id)
  local more = records.change_window(call, id, record,
    {start_at = starts_at, expires_at = expires_at, start_from = start_from, end_from = end_from})
  accounts.add_bytes(call, account, more)
  if run then
    run.bytes, run.began_at, run.lasts = run.bytes + more, starts_at, 0
    if start_from > 0 then leases.set_wait(call, run, starts_at) end
    leases.set_run(call, id, run)
  end
  places.put(call, account, id, starts_at)
  return 'ok'
end

-- reschedule(keys, argv): give waiting tasks another start; one that has passed means now.
--   argv  3 delay (ms; 0: see 4)  4 start_at (ms)  then ids (at most 64, each once)
--   out   per id "ok" | "running" | "expired" (it would start after its end) | "quota_exceeded" (its tenant has as many
--         delayed tasks as it may have) | "gone"; only those that are "ok" have changed
function drains.reschedule(keys, args)
  local call, delay = calls.open(keys, args), check_whole(args[3], 'start_at', 0, HORIZON_MS)
  local start_at = check_whole(args[4], 'start_at', 0, HORIZON_MS)
  local start_from = delay > 0 and records.counted_from(call) or 0
  if delay > 0 then start_at = call.now + delay end
  local outcomes = visit_alive(call, ids_in(args, 5, CHANGES_PER_CALL), function(_, id, record, run)
    if run and leases.is_leased(run.state) then return 'running' end
    return move(call, id, record, run, start_at, start_from)
  end)
  settlements.close(call)
  return outcomes
end
