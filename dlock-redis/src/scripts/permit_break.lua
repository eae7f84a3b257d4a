-- Takes their permits from all who hold one. KEYS: those of permit.lua, latch of this call. ARGV: those of permit.lua, where the
-- claim is empty and the ttl is that of a claim whose key has none, ms that the latch stays.
-- Answer: 1 if somebody held one, else 0. The latch is that of force_release.lua.
local told = redis.call('LINDEX', KEYS[4], 0)
if told then return tonumber(told) end
if redis.call('HGET', lock, 'mode') ~= 'permit' then return 0 end
bury(true)
local held = holders()
remove(held)
if redis.call('ZCARD', queue) == 0 then redis.call('DEL', lock) end
redis.call('RPUSH', KEYS[4], #held > 0 and 1 or 0)
redis.call('PEXPIRE', KEYS[4], ARGV[5])
return #held > 0 and 1 or 0
