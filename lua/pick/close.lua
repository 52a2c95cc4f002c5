-- needs: accounts, calls, charges, reserve, seats
--
-- Closing a call: all that it changed is written, each value once.

-- Has those written that an earlier verb of the call has touched.
local function touch_again(call)
  for _, tag in ipairs(call.earlier) do accounts.touch(call, accounts.at(call, tag)) end
end

-- Another verb goes on in the same call: it sees what it would see in a call of its own.
function close.go_on(call)
  seats.seat_all(call)
  if call.to_wake then seats.write_woken(call) end
  if call.queue.reserve > 0 then reserve.write(call) end
  call.earlier, call.touched, call.readied = call.touched, {}, false
end

-- Seats and writes what the call touched, and wakes the servers if they wait for work that there now is: not where one
-- has said that it claims at once. Should that claim be lost, they find out by their ticks.
function close.call(call)
  local queue = call.queue
  charges.bound_level(call)
  seats.seat_all(call)
  if call.earlier then touch_again(call) end
  seats.write(call)
  if call.parked then write('ZADD', key(call, 'parked'), call.parked) end
  accounts.write(call)
  if queue.reserve > 0 then reserve.write(call) end
  if queue.hungry == 1 and call.notify and queue.blocked == 0 then
    if call.readied or call.freed and reserve.has_room(call) then
      queue.hungry = 0
      calls.announce(call, call.notify)
    end
  end
  queue.now = call.now
  calls.save_queue(call)
  calls.publish(call)
end
