-- Versions of settings: a weight, limits, opening hours, the settings of a queue. A change may name the version that it
-- is based on. It is refused if that is no longer the current one, so that two operators do not overwrite each other's
-- changes.
--
-- A version is a digest of the value: nothing is stored for it, it survives the end of a tenant or queue, and a setting
-- that returns to an old value has that value's version again. A change that sets the current value is never refused:
-- it overwrites nothing, and may be a retry after a lost answer.

local DIGITS = 12

-- The version of a value, given as words and numbers.
function versions.of(words)
  local texts = {}
  for i, word in ipairs(words) do texts[i] = type(word) == 'number' and text(word) or word end
  return redis.sha1hex(table.concat(texts, ' ')):sub(1, DIGITS)
end

-- Refuses a change from `current` to `new` that is based on another version. Empty or nil: not checked.
function versions.check(given, current, new)
  if not given or given == '' then return end
  local version = versions.of(current)
  if given ~= version and versions.of(new) ~= version then refuse('stale_version', 'if_version ' .. version) end
end
