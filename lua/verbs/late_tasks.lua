-- needs: accounts, batches, picks, places, records
--
-- Picked tasks that a claim does not lease: those that have expired, and those for which its reply has no room.
--
-- If a picked task has expired, the pick goes to the tenant's next task. If the first LATE_PER_TENANT have all expired,
-- the claim passes the tenant over while others can be served, and its virtual time is at least a task ahead of the
-- level (`picks.pass_over`). It is charged no more: a tenant with so many tasks that they expire keeps its share. It is
-- charged no less, or it would get every pick of every claim.

late_tasks.PER_CALL = 64      -- expired tasks, after which a claim leaves the rest to the next
local LATE_PER_TENANT = 16    -- of one tenant, after which the claim passes it over

-- Collects a picked task that has expired. Its pick goes to the tenant's next task, up to a bound. `account.ready` must
-- count only tasks that the pick can get, not those put back for lack of room: so nothing is buried once the reply is
-- full.
local function bury(call, round, i, taking, id, last_run)
  local late, account = taking.late, accounts.at(call, round.tenants[i])
  table.insert(table_in(taking, 'expiring'), id)
  late[#late + 1], late[account] = {account = account, id = id, run = last_run}, (late[account] or 0) + 1
  if account.ready > 0 and late[account] < LATE_PER_TENANT then
    picks.skip(call, round, i)
  else
    picks.unpick(call, round, i, 0)
    picks.pass_over(call, account)
  end
end

-- Handles a picked task that is not leased now: it has expired, or the reply is full and it goes back.
function late_tasks.leave(call, round, i, taking, id, last_run)
  if taking.bytes < PAGE_BYTES and #taking.late < late_tasks.PER_CALL then
    return bury(call, round, i, taking, id, last_run)
  end
  picks.unpick(call, round, i, 1)
  table.insert(table_in(taking, 'returned'), {account = accounts.at(call, round.tenants[i]), id = id})
end

-- Buries the expired tasks.
function late_tasks.bury(call, taking)
  for _, each in ipairs(taking.late) do
    local run = each.run
    batches.give_slot_back(call, each.id)
    if run then redis.call('HDEL', call.prefix .. 'runs', each.id) end
    places.put_dead(call, each.account, each.id, EXPIRED, run or places.NO_RUN)
  end
  if call.marks then records.write_marks(call) end  -- of older dead letters that these pushed out
end

-- Puts tasks back at the head if the reply has no room for them.
function late_tasks.put_back(call, taking)
  local returned = taking.returned
  for i = #returned, 1, -1 do places.put_in_order(call, returned[i].account, {returned[i].id}, true) end
end
