-- KEYS: key. ARGV: value, ttl in ms. Answer: -2 if it is the caller's, else the ms that it lasts, -1 for ever.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return -2
end
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -2
end
return redis.call('PTTL', KEYS[1])
