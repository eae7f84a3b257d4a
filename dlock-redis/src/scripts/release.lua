-- Releases a mutex. Wakes its waiters, and the first waiter in the fair queue of the same name.
-- KEYS: lock, fair queue.
-- ARGV: owner, channel, publish command.
-- Reply: 1 if the owner held the lock, else 0.
if redis.pcall('HEXISTS', KEYS[1], ARGV[1]) ~= 1 then
    return 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[3], ARGV[2], '0')
-- The call fails if the queue's key contains data of another program. The lock is still released.
local head = redis.pcall('LINDEX', KEYS[2], 0)
if type(head) == 'string' then
    redis.call(ARGV[3], ARGV[2] .. ':' .. head, '0')
end
return 1
