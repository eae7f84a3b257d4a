-- KEYS, ARGV: those of fair.lua. Answer: 1 if the owner held it, else 0. Removes the owner from the queue if it waited. Wakes the
-- waiter that is first now, and those who wait for the name as a mutex.
local held = redis.pcall('HEXISTS', lock, owner) == 1
if held then
    redis.call('DEL', lock)
    redis.call(ARGV[5], ARGV[4], '0')
end
local sound, why = pcall(function()
    bury()
    leave(owner)
    wake_head()
end)
-- The calls above fail if another program's data is at the queue's key. A lock that was held is released all the same.
if not sound and not held then error(why) end
return held and 1 or 0
