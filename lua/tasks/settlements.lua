-- needs: accounts, batch_ends, batches, calls, charges, close, feeds, leases, lost_leases, places, records,
-- task_options
--
-- Settling a lease, by action (verbs/settle.lua). The fence is (id, lease): no number is given twice, so a late owner
-- can never touch a later lease of the task.
--
--   action   the lease ends, and the task is                                              the attempt
--   ack      done: forgotten, its id remembered, its result kept if asked for              counts
--   nack     delayed by delay_ms (empty: backoff with full jitter), or dead                counts
--   reject   dead at once, `rejected`                                                      counts
--   release  delayed by delay_ms (empty: back at the head of its tenant's list)            does not: the last moves up
--   reap     back at the head, or delayed if an attempt counted before;                    counts
--            dead (`lease_lost`) after the last
--   lose     as reap, and a lost lease counts: its process died, and ran others too        counts
--   lose_alone  as lose, but its process ran no other: dead too after the last lost lease  counts
--   extend   (the lease goes on)                                                           -
--   take     as extend, by another connection than before                                  -
--
-- A task that was cancelled while it was leased (STOPPING) is done if its owner acks it; any other end of the lease
-- makes it cancelled: forgotten, its id remembered so. lost_leases.lua explains `lose` and `lose_alone`.

-- Writes what is left of tasks that the call has ended.
function settlements.write(call)
  batch_ends.finish(call)
  leases.write(call)
end

-- Closes such a call.
function settlements.close(call)
  settlements.write(call)
  close.call(call)
end

-- Ends a task with options (`how`: done or cancelled).
local function end_options(call, account, id, how, attempt)
  batches.note_end(call, id, how)
  feeds.tell_of(call, account, id, how, attempt, '')
  task_options.drop(call, account, id, how == 'done')
end

-- Forgets a task that was cancelled. Its id is remembered with its lease if the lease's owner ended it. Otherwise it is
-- remembered with 0, so that the owner's settlement is stale.
function settlements.cancel(call, account, id, lease, attempt, features)
  records.mark(call, id, 'cancelled', lease, features)
  call.queue.cancelled = call.queue.cancelled + 1
  if has_options(features) then end_options(call, account, id, 'cancelled', attempt) end
end

function settlements.bury(call, account, id, run, reason, traceback)
  leases.set_run(call, id, nil)
  places.put_dead(call, account, id, reason, run, traceback)
end

local function end_run(call, id, state)
  local run = leases.run_of(call, id)
  run.state, run.is_extended = state, 0
  return run
end

-- How many of its attempts count.
local function counted(run) return run.attempt - run.uncounted_attempts end
local function is_last_attempt(run) return run.max_attempts > 0 and counted(run) >= run.max_attempts end

-- Makes the task wait for its next attempt: for `delay` ms, or (nil) at the head of its tenant's list. The end of its
-- window is watched again.
local function keep_waiting(call, account, id, run, delay)
  leases.set_wait(call, run, call.now + (delay or 0))
  leases.set_run(call, id, run)
  if run.expires_at > 0 then redis.call('ZADD', call.prefix .. 'expiring', run.expires_at, id) end
  if not delay then return places.put_ready(call, account, {id}, true) end
  places.put(call, account, id, call.now + delay)
end

-- The longest wait after a number of attempts: min(cap, base * 2^(attempts - 1)), the task's own or the queue's.
local function longest_wait_ms(call, id, run, attempts)
  local queue, asked = call.queue, has_options(run.features) and task_options.of(call, id) or PLAIN
  local base = asked.retry_base > 0 and asked.retry_base or queue.retry_base_ms
  local cap = asked.retry_cap > 0 and asked.retry_cap or queue.retry_cap_ms
  return math.min(cap, base * 2 ^ math.min(attempts - 1, 40))
end

local LEASED, STOPPING = leases.LEASED, leases.STOPPING
local WORKED = {ack = true, nack = true, reject = true}  -- the handler finished
local LOST = {reap = true, lose = true, lose_alone = true}  -- its owner did not end it
local ACTIONS = {}  -- action -> function, for a task that is neither done nor cancelled when its lease ends

function ACTIONS.nack(call, account, id, delay, message, traceback, reason)
  local run = end_run(call, id, leases.SETTLED)
  leases.set_error(call, account, run, message)
  feeds.tell_of(call, account, id, 'failed', run.attempt, run.error)
  reason = reason or is_last_attempt(run) and EXHAUSTED
  if reason then return settlements.bury(call, account, id, run, reason, traceback) end
  delay = tonumber(delay) or math.floor(calls.random(call) * longest_wait_ms(call, id, run, counted(run))) + 1
  keep_waiting(call, account, id, run, delay)
end

function ACTIONS.reject(call, account, id, message, traceback)
  ACTIONS.nack(call, account, id, '', message, traceback, REJECTED)
end

function ACTIONS.release(call, account, id, delay, message)
  local run = end_run(call, id, leases.SETTLED)
  run.uncounted_attempts = run.uncounted_attempts + 1
  if message ~= '' then leases.set_error(call, account, run, message) end
  keep_waiting(call, account, id, run, tonumber(delay))
end

-- After the first attempt that counts there is no delay: most workers die of something else. After later ones, failures
-- included, there is one, so that a task that kills its workers does not kill one after the other. `counts(run)` counts
-- a lost lease, and returns whether it was the last one allowed.
local function end_lost(call, account, id, counts)
  local run = end_run(call, id, leases.REAPED)
  local is_over = counts and counts(run) or is_last_attempt(run)
  feeds.tell_of(call, account, id, 'failed', run.attempt, REASONS[LEASE_LOST])
  if is_over then return settlements.bury(call, account, id, run, LEASE_LOST) end
  local before = counted(run) - 1
  keep_waiting(call, account, id, run, before > 0 and longest_wait_ms(call, id, run, before) or nil)
end

function ACTIONS.reap(call, account, id)
  end_lost(call, account, id)
end

function ACTIONS.lose(call, account, id)
  end_lost(call, account, id, function(run) return lost_leases.count(call.queue, run, false) end)
end

function ACTIONS.lose_alone(call, account, id)
  end_lost(call, account, id, function(run) return lost_leases.count(call.queue, run, true) end)
end

-- Why this number does not open a lease: `gone` if it was settled, or released by its server, or never existed; else
-- `stale`.
local function refusal(call, id, number)
  local lease = leases.lease_of(call, id)
  if lease then return lease.lease == number and lease.state == leases.SETTLED and 'gone' or 'stale' end
  leases.write(call)  -- it may be this call that settled it
  local death = redis.call('HGET', call.prefix .. 'dead', id)
  if death then return places.owner_of(DEATH.unpack(death)) == number and 'gone' or 'stale' end
  local how, settled_by = records.read_mark(redis.call('HGET', call.prefix .. 'tasks', id))
  return how and settled_by ~= number and 'stale' or 'gone'
end

-- Extends a lease; `take` has it taken over by another connection.
local function extend(call, action, id, state)
  local run, outcome = leases.extend(call, id, action == 'take'), state == STOPPING and 'cancelled' or 'ok'
  return action == 'take' and table.concat({outcome, run.takeovers, run.lasts}, ' ') or outcome
end

-- Ends or extends the lease if it is open and has this number and count of takeovers (nil: not checked). It was worked
-- on up to `until_at` (nil: it still is). Further arguments of the action are in `args` behind `at + 2`.
function settlements.settle(call, action, id, number, takeovers, args, at, until_at)
  local run = call.runs[id]
  if not run then return refusal(call, id, number) end
  local lease, state, features, is_extended, taken, began_at, _, bytes, tag, attempt = struct.unpack(LEASE.format, run)
  if number and lease ~= number or takeovers and taken ~= takeovers or state ~= LEASED and state ~= STOPPING then
    return refusal(call, id, number)
  end
  local is_done = action == 'ack'
  if not is_done and (action == 'extend' or action == 'take') then return extend(call, action, id, state) end
  local is_over, has_more, account = is_done or state == STOPPING, features > 0 and has_options(features), nil
  if has_more or not is_over then account = accounts.at(call, tag) end  -- else it may stay packed
  local bundle = call.bundles[lease] or leases.bundle(call, lease)
  if bundle then
    bundle.left, bundle.together, bundle.is_changed = bundle.left - 1, bundle.together - 1 + is_extended, true
  end
  if is_extended == 1 then table.insert(table_in(call, 'ended'), id) end
  if has_more then
    batches.count_running(call, id, -1)
    batches.give_slot_back(call, id)
  end
  charges.lease(call, tag, began_at, until_at, is_done or WORKED[action] and not is_over, is_done,
    is_over and id, bytes)
  if is_done then
    records.mark(call, id, 'done', lease, features)
    call.queue.done = call.queue.done + 1
    if has_more then
      batches.name_result(call, account, id)
      task_options.keep_result(call, account, id, args[at + 3])
      end_options(call, account, id, 'done', attempt)
    end
  elseif is_over then
    local is_lost = LOST[action]
    settlements.cancel(call, account, id, is_lost and 0 or lease, is_lost and 0 or attempt, features)
  else
    ACTIONS[action](call, account, id, unpack(args, at + 3, at + 5))
  end
  return 'ok'
end
