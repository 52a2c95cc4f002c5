-- needs: accounts, calls, charges, reserve, seats
--
-- Closing a call: writes all its changes, each value once.
--
-- Which section writes what, in this order:
--
--   before the close   the tasks, with their runs, leases and places: tasks/ and verbs/, each as it decides
--   seats              who is eligible, and in which seat or on the wake list: `class:<class>`, `wake`
--   limits             the tenants that are out of tokens, and until when: `parked`
--   accounts           the tenants that the call touched: `accounts` and what belongs to them
--   reserve            the tenants that have nothing running: `idle`
--   calls              the queue's record, `queue`; then the notifications, which may be lost

-- True if the call is of one of several partitions of a queue: the place's tag has a dot, and no queue's name has one.
local function is_partition(call)
  return call.prefix:find('.', 1, true)
end

-- The weight of the tenants of a partition that compete, for a call that had one of them begin to wait: its server
-- serves the partition out of turn, once. Nil where a queue has no partitions.
function close.competing_weight(call)
  return is_partition(call) and call.queue.weight_sum or nil
end

-- Seats and writes the tenants that the call touched. Notifies servers that wait for work, unless the caller claims it
-- at once. If that claim is lost, they find the work at their next ticks.
function close.call(call)
  local queue = call.queue
  if call.lowered then charges.bound_level(call) end
  seats.seat_all(call)
  if call.moved_tags then seats.write(call) end
  if call.to_wake then write('RPUSH', call.prefix .. 'wake', call.to_wake) end
  if call.parked then write('ZADD', call.prefix .. 'parked', call.parked) end
  accounts.write(call)
  if queue.reserve > 0 then reserve.write(call) end
  if queue.hungry == 1 and call.notify and queue.blocked == 0 then
    if call.readied or call.freed and reserve.has_room(call) then
      queue.hungry = 0
      calls.announce(call, call.notify .. (is_partition(call) and '/' .. text(queue.weight_sum) or ''))
      if call.notify ~= '1' then call.to_wake = false end  -- that server serves those that have begun to wait
    end
  end
  queue.now = call.now
  calls.save_queue(call)
  if call.messages then calls.publish(call) end
end

-- Closes the first part of a call that goes on with a claim, without notifying servers. If the claim fails, the first
-- part stays whole.
function close.go_on(call)
  call.notify = false
  close.call(call)
  call.notify = nil  -- back to the default of a call: the claim notifies all servers
  call.touched, call.moved_tags, call.to_wake, call.messages, call.readied = {}, false, false, false, false
end
