-- needs: batches, calls, leases, places, records, settlements
--
-- Dead letters: operators replay or delete them by id.

-- Watches the end of a replayed task's window again; if it has passed, the task has no window any more.
local function reopen(call, id, record, header)
  if header.expires_at == 0 then return end
  if header.expires_at > call.now then
    redis.call('ZADD', call.prefix .. 'expiring', header.expires_at, id)
    return
  end
  records.change_window(call, id, record, {expires_at = 0})
end

-- Calls visit(id, death) for the ids that are dead letters; out: per id "ok", or what visit returns, | "gone".
local function each_dead(call, args, visit)
  local ids, outcomes = {}, {}
  for i = 3, #args do ids[#ids + 1] = args[i] end
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'ids') end
  local deaths, seen = redis.call('HMGET', call.prefix .. 'dead', unpack(ids)), {}
  for i, id in ipairs(ids) do
    outcomes[i] = deaths[i] and not seen[id] and (visit(id, deaths[i]) or 'ok') or 'gone'
    seen[id] = true
  end
  settlements.close(call)
  return outcomes
end

-- replay(keys, argv): give dead letters a fresh set of attempts, at the end of their tenants' lists.
--   argv  ids (at most 500)
--   out   per id "ok" | "batch_gone" (the same, but its batch is no longer known) | "gone" (not a dead letter; or its
--         task is lost, and the letter is deleted)
function writes.replay(keys, args)
  local call = calls.open(keys, args)
  return each_dead(call, args, function(id, death)
    local record, died = redis.call('HGET', call.prefix .. 'tasks', id), DEATH.unpack(death)
    if not records.is_task(record) then  -- before the first write: a failure after it would lose letters
      places.drop_letter(call, id, death)
      return 'gone'
    end
    local account, header, bytes = places.take_out_dead(call, id, death), records.read(record, id)
    leases.set_new_run(call, id, header, bytes, account.tag, died.attempts, call.now)
    reopen(call, id, record, header)
    local is_counted = batches.count_revived(call, id, died.reason)
    places.put_ready(call, account, {id})
    return is_counted and 'ok' or 'batch_gone'
  end)
end

-- purge(keys, argv): delete dead letters.
--   argv  ids (at most 500)
--   out   per id "ok" | "gone" (not a dead letter)
function drains.purge(keys, args)
  local call = calls.open(keys, args)
  return each_dead(call, args, function(id, death)
    places.drop_letter(call, id, death)
  end)
end
