-- needs: accounts, limits, seats
--
-- The wake list (rule 3 of pick/README.md) as a claim reads it, round by round, and leaves it. Only `write` writes.

local function move_tags(from, to, count)
  while count > #to and #from > 0 do to[#to + 1] = table.remove(from, 1) end
end

-- The first tags of the wake list as earlier rounds have left it: those that they did not serve, then those not yet
-- read, then those that take another turn.
local function take_tags(call, wanted)
  local wake, tags = call.wake, {}
  move_tags(wake.unserved, tags, wanted)
  if #tags < wanted then
    local entries = redis.call('LRANGE', call.prefix .. 'wake', wake.read, wake.read + wanted - #tags - 1)
    wake.read = wake.read + #entries
    move_tags(entries, tags, wanted)
  end
  move_tags(wake.again, tags, wanted)
  return tags
end

-- The tenants at the head of the wake list; entries that hold no more (rule 3 of pick/README.md) are dropped. Also
-- tells whether any entry was used or dropped: those of tenants that are passed over stay.
function wake_list.read(call, wanted)
  local tags, woken, passed = take_tags(call, wanted), {}, 0
  if #tags == 0 then return woken, false end
  accounts.read(call, tags)
  for _, tag in ipairs(tags) do
    local account = accounts.at(call, tag)
    if account and call.passed_over[account] then
      table.insert(call.wake.again, tag)
      passed = passed + 1
    elseif account and account.slot == AWAKE and limits.is_eligible(call, account)
        and seats.may_wake(call, account) then
      woken[#woken + 1] = account
    elseif account then
      accounts.touch(call, account).is_on_wake_list = 0
    end
  end
  return woken, #tags > passed
end

-- Tenants that were not served keep their place in the wake list; those that take another turn go behind all others.
function wake_list.keep(call, round)
  local wake, next_woken, popped = call.wake, round.next_woken, round.popped
  for i = popped, next_woken, -1 do table.insert(wake.unserved, 1, round.woken[i].tag) end
  for i = math.max(next_woken, popped + 1), #round.woken do wake.again[#wake.again + 1] = round.woken[i].tag end
end

-- Writes what the claim has left of the wake list.
function wake_list.write(call)
  local wake, list = call.wake, call.prefix .. 'wake'
  if wake.read == 0 then return end
  redis.call('LTRIM', list, wake.read, -1)
  if #wake.unserved > 0 then
    local reversed = {}
    for i = #wake.unserved, 1, -1 do reversed[#reversed + 1] = wake.unserved[i] end
    redis.call('LPUSH', list, unpack(reversed))
  end
  if #wake.again > 0 then redis.call('RPUSH', list, unpack(wake.again)) end
end

-- How many more tasks the tenants of the wake list that the claim met could have within their guarantees.
function wake_list.owed(call)
  local owed, wake = 0, call.wake
  for _, tag in ipairs(wake.unserved) do owed = owed + limits.owed(call, accounts.at(call, tag)) end
  for _, tag in ipairs(wake.again) do owed = owed + limits.owed(call, accounts.at(call, tag)) end
  return owed
end
