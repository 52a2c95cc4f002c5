-- What the store's user may not do of that which the library does: asked at start, so that no call fails half way.

local COMMANDS = {  -- every command that the sections use; `@` stands for a key or a channel of the queue
  'GET @', 'GETRANGE @ 0 1', 'SETRANGE @ 0 1', 'SET @ 1', 'DEL @', 'UNLINK @', 'EXISTS @', 'HGET @ 1',
  'HSET @ 1 1', 'HMGET @ 1', 'HDEL @ 1', 'HEXISTS @ 1', 'HINCRBY @ 1 1', 'HGETALL @', 'HLEN @', 'HSCAN @ 0',
  'HSTRLEN @ 1', 'LRANGE @ 0 1', 'LTRIM @ 0 1', 'LPUSH @ 1', 'RPUSH @ 1', 'LPOP @', 'LREM @ 0 1', 'LPOS @ 1', 'LLEN @',
  'LINDEX @ 0', 'ZADD @ 1 1', 'ZREM @ 1', 'ZRANGE @ 0 1', 'ZSCORE @ 1', 'ZCOUNT @ 0 1', 'ZRANK @ 1', 'ZPOPMIN @',
  'ZREMRANGEBYRANK @ 0 1', 'ZSCAN @ 0',
  'XADD @ * 1 1', 'XDEL @ 0-1', 'XRANGE @ - +', 'XLEN @', 'XINFO STREAM @', 'ZCARD @', 'SCAN 0', 'TIME',
  'SPUBLISH @ 1', 'RENAME @ @', 'ZMSCORE @ 1', 'PEXPIRE @ 1', 'HSETNX @ 1 1',
}

-- permissions(keys, argv): the commands of the library that the store's user may not run on the queue's keys.
--   out   their names
function reads.permissions(keys, _)
  local missing, at = {}, key({prefix = keys[1]}, 'ready')
  for _, command in ipairs(COMMANDS) do
    local words = {}
    for word in command:gmatch('%S+') do words[#words + 1] = word == '@' and at or word end
    if not redis.acl_check_cmd(unpack(words)) then missing[#missing + 1] = words[1] end
  end
  return missing
end
