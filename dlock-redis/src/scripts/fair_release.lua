-- KEYS, ARGV: those of fair.lua. Answer: 1 if the owner held it, else 0. Wakes who is first now, and those who wait for it as mutex.
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
-- Another program's data at the queue's key is no reason to say that the lock was not released.
if not sound and not held then error(why) end
return held and 1 or 0
