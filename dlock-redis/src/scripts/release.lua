-- KEYS: lock, fair queue. ARGV: owner, channel, publish command.
-- Answer: 1 if the owner held it, else 0. Wakes those who wait for the mutex, and the first who waits for it as fair.
if redis.pcall('HEXISTS', KEYS[1], ARGV[1]) ~= 1 then
    return 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[3], ARGV[2], '0')
-- Another program's data at the queue's key is no reason to say that the lock was not released.
local head = redis.pcall('LINDEX', KEYS[2], 0)
if type(head) == 'string' then
    redis.call(ARGV[3], ARGV[2] .. ':' .. head, '0')
end
return 1
