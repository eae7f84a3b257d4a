-- Releases a fair lock, or removes the owner from the queue. Wakes the new first waiter and the
-- waiters for the name as a mutex.
-- KEYS, ARGV: those of fair.lua.
-- Reply: 1 if the owner held the lock, else 0.
local held = redis.pcall('HEXISTS', lock, owner) == 1
if held then
    redis.call('DEL', lock)
    redis.call(ARGV[5], ARGV[4], '0')
end
local ok, problem = pcall(function()
    remove_expired()
    leave(owner)
    wake_head()
end)
-- The calls above fail if the queue's key contains data of another program. A lock that was held is
-- still released.
if not ok and not held then error(problem) end
return held and 1 or 0
