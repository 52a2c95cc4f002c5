-- needs: arrivals, calls, claim, close, enqueue
--
-- The verb `enqueue_and_claim`: for a task that a free worker waits for. The queue and the tenant are read once. They
-- are written before the claim: should that fail, the tasks are stored, as an enqueue of the same ids will say.

-- enqueue_and_claim(keys, argv): what `enqueue` does, then what `claim` does, in one call.
--   argv  3 to 7 as of `claim`, but 5 is empty  8 tenant  then per task as of `enqueue`
--         Refused as a whole where `enqueue` would be: nothing is claimed then.
--   out   the outcomes of `enqueue`, the reply of `claim`
function writes.enqueue_and_claim(keys, args)
  local call, new = calls.open_made(keys, args), arrivals.new(args[8])
  check_tenant(new.tenant)
  local asked = claim.read(call, args)
  local outcomes = enqueue.decide(call, new, args, 9, #args)
  if #new.records > 0 then
    enqueue.store_decided(call, new)
    close.go_on(call)
  end
  if new.has_duplicates then enqueue.tell_states(call, args, 9, outcomes) end
  return {outcomes, claim.carry_out(call, asked)}
end
