-- KEYS: those of permit.lua, fair queue. ARGV: those of permit.lua, read/write channel.
-- Answer: 1 if the claim held, else 0. Removes the claim if it waited. Wakes the waiters whose turn comes by that.
local is_ours = redis.pcall('HGET', lock, 'mode') == 'permit'
bury(is_ours)
local held = remove({me})[me]
if is_ours and redis.call('ZCARD', queue) == 0 then free() end
return held and 1 or 0
