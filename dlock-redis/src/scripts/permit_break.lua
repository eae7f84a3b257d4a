-- Breaks the permits of all holders.
-- KEYS: those of permit.lua, saved reply of this call as in force_release.lua.
-- ARGV: those of permit.lua, ttl of the saved reply in ms. The claim is empty. The ttl is for a
-- claim whose key has none.
-- Reply: 1 if a permit was held, else 0.
local saved = redis.call('LINDEX', KEYS[4], 0)
if saved then return tonumber(saved) end
if redis.call('HGET', lock, 'mode') ~= 'permit' then return 0 end
remove_expired(true)
local held = holders()
remove(held)
if redis.call('ZCARD', queue) == 0 then redis.call('DEL', lock) end
redis.call('RPUSH', KEYS[4], #held > 0 and 1 or 0)
redis.call('PEXPIRE', KEYS[4], ARGV[5])
return #held > 0 and 1 or 0
