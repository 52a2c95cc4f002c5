-- needs: arrivals, calls, claim, close, enqueue
--
-- The verb `enqueue_and_claim`, used while a worker has a free slot. The queue and the tenant are read once. They are
-- written before the claim: if that fails, the tasks are stored, and enqueueing the same ids again says so.

-- enqueue_and_claim(keys, argv): `enqueue`, then `claim`, in one call.
--   argv  3 to 8 as in `claim`, but 5 is empty  9 tenant  then per task as in `enqueue`
--         Refused as a whole where `enqueue` would be: nothing is claimed then.
--   out   the outcomes of `enqueue`, the reply of `claim`
function writes.enqueue_and_claim(keys, args)
  local call, new = calls.open_made(keys, args), arrivals.new(args[9])
  check_tenant(new.tenant)
  local taking = claim.read(call, args)
  local outcomes = enqueue.decide(call, new, args, 10, #args)
  if #new.records > 0 then
    enqueue.store_decided(call, new)
    close.go_on(call)
  end
  if new.has_duplicates then enqueue.tell_states(call, args, 10, outcomes) end
  return {outcomes, claim.carry_out(call, taking)}
end
