-- needs: accounts, batches, calls, group_order, leases, limits, lost_leases, priorities, reserve, standing, takes,
-- task_options
--
-- Why a task waits: the facts. Servers interpret them (fairq/model/waiting.py).

-- How many of its tenant's tasks come before a ready one where groups take turns, at least, and whether that is exact;
-- then how many of its own group come before it, and how many groups there are.
local function count_by_groups(call, account, id)
  local asked, next_ids = task_options.of(call, id), takes.ids(call, account, TASKS_PER_CALL)
  local group, place = group_order.group_of(asked), nil
  for i, each in ipairs(next_ids) do
    if each == id then place = i - 1 end
  end
  local own = group ~= '' and redis.call('ZRANK', group_order.group_key(call, account, asked.priority, group), id) or 0
  return place or math.max(#next_ids, own), place ~= nil, own, group_order.count(call, account, asked.priority)
end

-- The position of a waiting task among the tasks of its tenant, or of its batch.
local function place_of(call, account, id, state)
  local ahead, is_exact, batch, group_ahead, groups = account.ready, false, nil, 0, 0
  if state == 'ready' and accounts.details_of(call, account).grouped > 0 then
    ahead, is_exact, group_ahead, groups = count_by_groups(call, account, id)
  elseif state == 'ready' then
    is_exact = redis.call('ZRANK', priorities.ready_key(call, account.name), id)  -- false: its place is to be rebuilt
    ahead = is_exact or 0
  end
  if state == 'pending' then
    ahead, is_exact, batch = redis.call('ZRANK', batches.pending_key(call, id), id), true, batches.of_task(call, id)
  end
  return {ahead = ahead, is_exact = is_exact and 1 or 0, batch_max_running = batch and batch.max_running or 0,
    group_ahead = group_ahead, groups = groups}
end

-- why(keys, argv): the facts about why a task waits.
--   argv  3 id
--   out   now_ms, its row as in `tasks`, then for a waiting task: name, value, name, value, ... (numbers as text):
--         ahead (tasks of its tenant before it, at least; pending: of its batch; delayed: all that are ready now),
--         is_exact, batch_max_running, group_ahead and groups (how many tasks of its group, of how many groups that
--         take turns; 0: none); its tenant's account, the limits in force for it, debt (service
--         by which it is ahead of the level: ms or tasks; 0: none), is_awake (it is served next) and
--         competes (its weight is in queue_weight_sum); the queue's account, after `queue_`, queue_slots, queue_kept
--         (how many of them are kept for tenants that have nothing running, if all others are in use; else 0);
--         lost_leases, max_lost_leases (0: no limit), was_lost (the last attempt ended by its lease's loss),
--         runs_alone (in its next attempt);
--         opening_changes_at and queue_opening_changes_at (when opening hours begin or close; 0: none)
function reads.why(keys, args)
  local call, id = calls.ask(keys, args), args[3]
  local row = standing.of(call, {id})[1]
  local out, state = {call.now, row}, row[1]
  if state ~= 'ready' and state ~= 'pending' and state ~= 'delayed' then return out end
  local queue, account = call.queue, accounts.named(call, row[2])
  local holds, facts = limits.of(call, account), place_of(call, account, id, state)
  for _, name in ipairs({'weight', 'estimate', 'ready', 'leased'}) do facts[name] = account[name] end
  for _, name in ipairs({'blocked', 'theoretical_arrival'}) do
    facts[name] = accounts.details_of(call, account)[name]
  end
  for _, name in ipairs({'max_running', 'guaranteed', 'rate', 'burst'}) do facts[name] = holds[name] end
  facts.queue_slots, facts.queue_kept = queue.slots, reserve.kept(call)
  for _, name in ipairs({'weight_sum', 'estimate', 'leased', 'blocked'}) do facts['queue_' .. name] = queue[name] end
  facts.debt = math.max(0, accounts.vtime_of(call, account) - queue.level) * account.weight
  facts.competes = account.standing == COMPETES and 1 or 0
  facts.is_awake = account.slot == AWAKE and 1 or 0
  local run = leases.run_of(call, id)
  local lost, last = run and run.lost_leases or 0, run and leases.last_attempt(run.max_attempts, run.uncounted_attempts)
  facts.lost_leases, facts.max_lost_leases = lost, queue.max_lost_leases
  facts.was_lost = run and run.state == leases.REAPED and run.lease > 0 and 1 or 0
  facts.runs_alone = run and lost_leases.runs_alone(queue, lost, 0 < last and last <= run.attempt + 1) and 1 or 0
  facts.opening_changes_at = redis.call('ZSCORE', call.prefix .. 'opening_changes', account.name) or 0
  facts.queue_opening_changes_at = redis.call('ZSCORE', call.prefix .. 'opening_changes', '') or 0
  for name, value in pairs(facts) do
    out[#out + 1], out[#out + 2] = name, text(value)
  end
  return out
end
