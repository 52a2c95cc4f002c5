-- Checks at start that the store's user may run all commands, so that no call fails between its writes.

-- permissions(keys, argv): the commands of the library that the store's user may not run on the queue's keys.
--   out   their names
function reads.permissions(keys, _)
  local missing, at = {}, keys[1] .. ':ready'
  for command, more in COMMANDS:gmatch('(%u+) ?(%u*)') do  -- those in the sections' text, which the loader lists
    local words = more == '' and {command, at} or {command, more, at}
    if not redis.acl_check_cmd(unpack(words)) then missing[#missing + 1] = command end
  end
  return missing
end
