-- KEYS, ARGV: those of fair.lua. Answer: 1 if the owner held it, else 0. Wakes who is first now, and those who wait for it as mutex.
local held = redis.pcall('HEXISTS', lock, owner) == 1
bury()
leave(owner)
if held then
    redis.call('DEL', lock)
    redis.call(ARGV[5], ARGV[4], '0')
end
wake_head()
return held and 1 or 0
