-- KEYS: lock, fair queue. ARGV: owner, channel, publish command.
-- Answer: 1 if the owner held it, else 0. Wakes those who wait for the mutex, and the first in the fair queue of the same name.
if redis.pcall('HEXISTS', KEYS[1], ARGV[1]) ~= 1 then
    return 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[3], ARGV[2], '0')
-- The call fails if another program's data is at the queue's key. The lock is released all the same.
local head = redis.pcall('LINDEX', KEYS[2], 0)
if type(head) == 'string' then
    redis.call(ARGV[3], ARGV[2] .. ':' .. head, '0')
end
return 1
