-- Acquires a mutex of the plain dialect.
-- KEYS: key.
-- ARGV: value, ttl in ms, deadline.
-- Reply: -2 if the caller holds the lock now. Otherwise the ms until the ttl of the other holder
-- ends, or -1 if it has no ttl.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return -2
end
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -2
end
return redis.call('PTTL', KEYS[1])
