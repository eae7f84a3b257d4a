-- KEYS: those of permit.lua, fair queue. ARGV: those of permit.lua, read/write channel.
-- Answer: 1 if the claim held, else 0. Removes the claim if it waited. Wakes the waiters whose turn comes by that.
local is_ours = redis.pcall('HGET', lock, 'mode') == 'permit'
bury(is_ours)
local held = holders()[me]
remove({me})
if redis.call('ZCARD', queue) > 0 then
    keep()
elseif is_ours then
    redis.call('DEL', lock)
    -- For those of Redisson who wait for the name as another kind of lock.
    redis.call(ARGV[4], ARGV[3], '0')
    redis.call(ARGV[4], ARGV[5], '1')
    redis.call(ARGV[4], ARGV[5], '0')
    local head = redis.pcall('LINDEX', KEYS[4], 0)
    if type(head) == 'string' then redis.call(ARGV[4], ARGV[3] .. ':' .. head, '0') end
end
return held and 1 or 0
