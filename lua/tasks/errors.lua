-- needs: limits
--
-- Errors: the messages and tracebacks that are kept of failures.
--
-- An error of a stored task cannot be refused. So it is cut to the room that the tenant's limit leaves, and says so at
-- its end. What is left then counts nothing: the bytes counted for its task include it (lua/KEYS.md). All other errors
-- and tracebacks count their length.

local CUT = ' [cut: stored_bytes]'
local KEPT_BYTES = 40  -- of an error that is cut, before the note that says so

-- The bytes that an error or traceback counts for its tenant.
function errors.bytes_of(text)
  return #text <= KEPT_BYTES + #CUT and text:sub(-#CUT) == CUT and 0 or #text
end

-- The part of a new error that is kept in place of the previous one.
function errors.fit(call, account, text, previous)
  text = text:sub(1, ERROR_BYTES)
  local more = errors.bytes_of(text) - errors.bytes_of(previous)
  return (more <= 0 or more <= limits.room(call, account)) and text or text:sub(1, KEPT_BYTES) .. CUT
end

-- The part of a traceback that is kept. An error that was cut has said so already.
function errors.fit_traceback(call, account, text, message)
  text = text:sub(1, TRACEBACK_BYTES)
  if text == '' or #text <= limits.room(call, account) then return text end
  return message ~= '' and errors.bytes_of(message) == 0 and '' or CUT
end
