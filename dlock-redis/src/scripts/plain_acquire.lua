-- KEYS: key. ARGV: value, ttl in ms, deadline.
-- Answer: -2 if the caller holds it now, else the ms until the other holder's ttl ends, -1 if it never does.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return -2
end
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -2
end
return redis.call('PTTL', KEYS[1])
