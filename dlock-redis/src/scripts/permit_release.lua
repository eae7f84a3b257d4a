-- Releases a permit, or removes a waiting claim. Wakes the waiters that hold as a result.
-- KEYS: those of permit.lua, fair queue.
-- ARGV: those of permit.lua, read/write channel.
-- Reply: 1 if the claim held a permit, else 0.
local is_ours = redis.pcall('HGET', lock, 'mode') == 'permit'
remove_expired(is_ours)
local held = remove({me})[me]
if is_ours and redis.call('ZCARD', queue) == 0 then free() end
return held and 1 or 0
