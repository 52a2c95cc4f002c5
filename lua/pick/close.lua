-- needs: accounts, calls, charges, reserve, seats
--
-- Closing a call: all that it changed is written, each value once.

-- Seats and writes what the call touched, and wakes the servers if they wait for work that there now is: not where one
-- has said that it claims at once. Should that claim be lost, they find out by their ticks.
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
      calls.announce(call, call.notify)
    end
  end
  queue.now = call.now
  calls.save_queue(call)
  if call.messages then calls.publish(call) end
end

-- Closes a call in which a claim goes on, so that nobody is told. Should that fail, what has been done stays whole.
function close.go_on(call)
  call.notify = false
  close.call(call)
  call.notify = nil  -- all servers, as in other calls
  call.touched, call.moved_tags, call.to_wake, call.messages, call.readied = {}, false, false, false, false
end
